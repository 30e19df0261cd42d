"""Fills the books with a month of usage, many rows at a time; also `python -m` for measuring."""

from __future__ import annotations

import datetime as dt

from django.db import connection

from quotas.models import ApiKey, User
from quotas.services.usage import _GROUP, _SUMS

END = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
# One person sends every fifth request; 200 people with a key of each class, three models.
_ROWS = """
INSERT INTO usage_event (
    request_id, arrived_at, key_id, user_id, group_id, service_class, route, model, replica_id,
    outcome, status, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, estimated,
    queue_wait_ms, ttft_ms, duration_ms, finish_reason, error_code, stream, end_user, batch_id,
    client_request_id)
SELECT 'req_' || lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
    || lpad(to_hex(n), 16, '0'), at,
    'key_' || u || '_' || n / 5 %% 2, u, u %% 10,
    CASE n / 5 %% 2 WHEN 0 THEN 'batch' ELSE 'interactive' END,
    '/v1/chat/completions', 'model-' || u %% 3, 'rep_' || n %% 4, 'served', 200, 500 + n %% 1000,
    n %% 300, 100 + n %% 400, NULL, false, n %% 2000, 50 + n %% 3000, 1000 + n %% 20000, 'stop', '',
    true, '', '', ''
FROM (SELECT n, CASE WHEN n %% 5 = 0 THEN 1 ELSE 2 + (n::bigint * 7919) %% 199 END AS u,
      %(end)s::timestamptz - (n * (30 * 86400.0 / %(rows)s)) * interval '1 second' AS at
      FROM generate_series(1, %(rows)s) n) AS made
"""


def people() -> None:
    """Make the 200 people and their keys whose usage that is, those there already stay."""
    users = [User(pk=u, username=f"person{u}", email=f"p{u}@example.org") for u in range(1, 201)]
    User.objects.bulk_create(users, ignore_conflicts=True)
    made = [
        ApiKey(
            public_id=f"key_{user.pk}_{n}", owner=user, name=f"key {n}", digest=f"{user.pk}-{n}",
            masked="…", service_class=("batch", "interactive")[n],
        )
        for user in users
        for n in (0, 1)
    ]  # fmt: skip
    ApiKey.objects.bulk_create(made, ignore_conflicts=True)


def fill(rows: int) -> None:
    """Make `rows` requests of thirty days and their hours, by set-based statements."""
    sums = ", ".join(f"sum({what})" for what in _SUMS.values()).replace("%%", "%")
    with connection.cursor() as cursor:
        cursor.execute(_ROWS, {"rows": rows, "end": END})
        cursor.execute(
            f"INSERT INTO usage_hour (hour, {_GROUP}, {', '.join(_SUMS)}) "
            f"SELECT date_trunc('hour', arrived_at), {_GROUP}, {sums} FROM usage_event "
            f"GROUP BY 1, {_GROUP}"
        )
        cursor.execute("ANALYZE usage_event")
        cursor.execute("ANALYZE usage_hour")
