"""The shapes of the portal's API."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.utils import timezone
from rest_framework import serializers

from quotas.models import ApiKey, ServiceClass, UsageEvent, User


class KeySerializer(serializers.ModelSerializer[ApiKey]):
    """A key without its secret."""

    id = serializers.CharField(source="public_id", read_only=True)
    state = serializers.SerializerMethodField()

    class Meta:
        model = ApiKey
        fields = ["id", "name", "service_class", "may_manage", "masked", "state", "created_at",
                  "expires_at", "last_used_at", "revoked_at"]  # fmt: skip
        read_only_fields = fields

    def get_state(self, key: ApiKey) -> str:
        """Return live, disabled, expired or revoked."""
        return key.state(timezone.now())


class IssuedKeySerializer(KeySerializer):
    """A key with the only copy of its secret."""

    secret = serializers.CharField(read_only=True)

    class Meta(KeySerializer.Meta):
        fields = [*KeySerializer.Meta.fields, "secret"]
        read_only_fields = fields


class NewKeySerializer(serializers.Serializer[Any]):
    """What a new key needs to know."""

    name = serializers.CharField(max_length=100)
    service_class = serializers.ChoiceField(choices=ServiceClass.choices)
    days = serializers.IntegerField(min_value=1, max_value=3650, default=90)
    may_manage = serializers.BooleanField(
        default=False, help_text="It may write here too. Not for a key to give to another."
    )


class ChangeKeySerializer(serializers.Serializer[Any]):
    """What may change about a key."""

    name = serializers.CharField(max_length=100, required=False)
    days = serializers.IntegerField(min_value=1, max_value=3650, required=False)
    disabled = serializers.BooleanField(required=False)


class RotateSerializer(serializers.Serializer[Any]):
    """How long the old secret still works."""

    overlap_hours = serializers.IntegerField(min_value=0, max_value=24 * 30, default=24)


class RequestSerializer(serializers.ModelSerializer[UsageEvent]):
    """One request; never its text."""

    class Meta:
        model = UsageEvent
        fields = [
            "request_id", "arrived_at", "key_id", "service_class", "route", "model", "outcome",
            "status", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens",
            "estimated", "queue_wait_ms", "ttft_ms", "duration_ms", "finish_reason", "error_code",
            "stream", "batch_id",
        ]  # fmt: skip
        read_only_fields = fields


class RequestPageSerializer(serializers.Serializer[Any]):
    """Some requests, newest first, and where to go on."""

    data = RequestSerializer(many=True)  # type: ignore[assignment]  # OpenAI's name of the list
    has_more = serializers.BooleanField()
    after = serializers.CharField(allow_blank=True)


class UsageLineSerializer(serializers.Serializer[Any]):
    """One line of a report; cached and reasoning are parts of the others."""

    labels = serializers.DictField(child=serializers.CharField())
    requests = serializers.IntegerField()
    served = serializers.IntegerField()
    failed = serializers.IntegerField()
    aborted = serializers.IntegerField()
    evicted = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    reasoning_tokens = serializers.IntegerField()
    mean_queue_wait_ms = serializers.IntegerField(allow_null=True)
    mean_ttft_ms = serializers.IntegerField(allow_null=True)


class UsageSerializer(serializers.Serializer[Any]):
    """A report over local days, both inside."""

    first = serializers.DateField()
    last = serializers.DateField()
    time_zone = serializers.CharField()
    lines = UsageLineSerializer(many=True)


class LimitSerializer(serializers.Serializer[Any]):
    """What binds, and where it comes from; value null is no limit."""

    name = serializers.CharField()
    service_class = serializers.CharField()
    per = serializers.CharField()
    value = serializers.IntegerField(allow_null=True)
    names = serializers.ListField(child=serializers.CharField(), allow_null=True)
    level = serializers.CharField()
    ends_at = serializers.DateTimeField(allow_null=True)


class SetLimitSerializer(serializers.Serializer[Any]):
    """A limit to set: for everyone, or for the one group, user or key named."""

    group = serializers.CharField(required=False)
    user = serializers.CharField(required=False)
    key = serializers.CharField(required=False)
    service_class = serializers.ChoiceField(choices=ServiceClass.choices)
    name = serializers.CharField(max_length=32)
    per = serializers.ChoiceField(choices=["key", "person", "group"], required=False)
    value = serializers.IntegerField(allow_null=True, required=False, min_value=0)
    names = serializers.ListField(child=serializers.CharField(max_length=200), required=False)
    ends_at = serializers.DateTimeField(required=False)
    note = serializers.CharField(max_length=200, required=False, allow_blank=True)


class PersonSerializer(serializers.ModelSerializer[User]):
    """A person as administrators see them."""

    group = serializers.CharField(source="group.name", default=None, allow_null=True)
    live_keys = serializers.IntegerField()
    tokens_30d = serializers.IntegerField()

    class Meta:
        model = User
        fields = ["id", "username", "email", "group", "is_active", "date_joined", "live_keys",
                  "tokens_30d"]  # fmt: skip
        read_only_fields = fields


class StatusSerializer(serializers.Serializer[Any]):
    """The status page for programs; null is unknown."""

    state = serializers.CharField()
    sentence = serializers.CharField()
    at = serializers.DateTimeField(allow_null=True)
    last_heard_at = serializers.DateTimeField(allow_null=True)
    queue_store = serializers.CharField()
    models = serializers.ListField(child=serializers.DictField())
    engines = serializers.ListField(child=serializers.DictField())


def lifetime(days: int) -> dt.timedelta:
    """Return a number of days as a length of time."""
    return dt.timedelta(days=days)
