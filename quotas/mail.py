"""Mail about quotas. Everything works without a mail server: a mail that cannot go is logged."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from smtplib import SMTPException

import structlog
from django.core.mail import send_mail
from django.db import transaction

log = structlog.get_logger(__name__)


def after_commit(*, subject: str, text: str, to: Iterable[str]) -> None:
    """Send the mail once what it speaks of is committed."""
    addresses = sorted({address for address in to if address})
    if addresses:
        transaction.on_commit(partial(_send, subject, text, addresses), robust=True)


def _send(subject: str, text: str, addresses: list[str]) -> None:
    line = " ".join(subject.split())  # a name with a line break must not add a header
    for address in addresses:
        try:
            send_mail(line, text, None, [address])
        except (OSError, SMTPException) as error:
            log.warning("mail_not_sent", subject=line, error=str(error))
