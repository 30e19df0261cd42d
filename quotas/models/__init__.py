"""The books: who may use what, how much, and what was used."""

from quotas.models.capacity import (
    CapacityDecision,
    CapacityRun,
    CapacitySample,
    PoolMinute,
)
from quotas.models.engines import Card, Pool, Replica
from quotas.models.keys import ApiKey, OldSecret, ServiceClass
from quotas.models.limits import Level, LimitRow, Per
from quotas.models.mails import QuotaMail
from quotas.models.people import Group, User
from quotas.models.requests import Invite, QuotaRequest
from quotas.models.reservations import Reservation
from quotas.models.usage import (
    DirectoryVersion,
    RejectedMinute,
    UsageEvent,
    UsageHour,
    WriterPosition,
)

__all__ = [
    "ApiKey",
    "CapacityDecision",
    "CapacityRun",
    "CapacitySample",
    "Card",
    "DirectoryVersion",
    "Group",
    "Invite",
    "Level",
    "LimitRow",
    "OldSecret",
    "Per",
    "Pool",
    "PoolMinute",
    "QuotaMail",
    "QuotaRequest",
    "RejectedMinute",
    "Replica",
    "Reservation",
    "ServiceClass",
    "UsageEvent",
    "UsageHour",
    "User",
    "WriterPosition",
]
