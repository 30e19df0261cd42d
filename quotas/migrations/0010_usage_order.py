"""Usage is kept in the order of its arrival; one index less, and the others cost less to keep."""

import django.contrib.postgres.indexes
from django.db import migrations

# One statement for each way: the table is never without its unique key.
FORWARD = """
ALTER TABLE usage_event
    DROP CONSTRAINT usage_event_once,
    ADD CONSTRAINT usage_event_once PRIMARY KEY (arrived_at, request_id);
DROP INDEX usage_event_time;
CREATE INDEX usage_event_request ON usage_event
    USING brin (request_id) WITH (autosummarize = on, pages_per_range = 32);
"""
BACKWARD = """
DROP INDEX usage_event_request;
CREATE INDEX usage_event_time ON usage_event (arrived_at);
ALTER TABLE usage_event
    DROP CONSTRAINT usage_event_once,
    ADD CONSTRAINT usage_event_once PRIMARY KEY (request_id, arrived_at);
"""


class Migration(migrations.Migration):
    dependencies = [("quotas", "0009_managing_keys")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveIndex(model_name="usageevent", name="usage_event_time"),
                migrations.AddIndex(
                    model_name="usageevent",
                    index=django.contrib.postgres.indexes.BrinIndex(
                        autosummarize=True,
                        fields=["request_id"],
                        name="usage_event_request",
                        pages_per_range=32,
                    ),
                ),
            ],
            database_operations=[migrations.RunSQL(FORWARD, BACKWARD)],
        ),
    ]
