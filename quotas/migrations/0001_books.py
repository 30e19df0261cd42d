"""The books from the first day: people, keys, limits, engines, usage."""

import datetime

import django.contrib.auth.models
import django.contrib.auth.validators
import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
import django.utils.timezone
import quotas.models.identity
from django.conf import settings
from django.db import migrations, models


USAGE_EVENT = """
CREATE TABLE usage_event (
    request_id varchar(64) NOT NULL,
    arrived_at timestamptz NOT NULL,
    key_id varchar(24) NOT NULL,
    user_id bigint NOT NULL,
    group_id bigint,
    service_class varchar(12) NOT NULL,
    route varchar(64) NOT NULL,
    model varchar(200) NOT NULL,
    replica_id varchar(24) NOT NULL,
    outcome varchar(32) NOT NULL,
    status smallint NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint,
    completion_tokens bigint NOT NULL,
    reasoning_tokens bigint,
    estimated boolean NOT NULL,
    queue_wait_ms bigint,
    ttft_ms bigint,
    duration_ms bigint NOT NULL,
    finish_reason varchar(32) NOT NULL,
    error_code varchar(64) NOT NULL,
    stream boolean NOT NULL,
    end_user varchar(200) NOT NULL,
    batch_id varchar(64) NOT NULL,
    client_request_id varchar(200) NOT NULL,
    CONSTRAINT usage_event_once PRIMARY KEY (request_id, arrived_at)
) PARTITION BY RANGE (arrived_at);
CREATE TABLE usage_event_default PARTITION OF usage_event DEFAULT;
CREATE INDEX usage_event_user_time ON usage_event (user_id, arrived_at);
CREATE INDEX usage_event_key_time ON usage_event (key_id, arrived_at);
CREATE INDEX usage_event_time ON usage_event (arrived_at);
CREATE INDEX usage_event_batch ON usage_event (batch_id, arrived_at) WHERE batch_id <> '';
"""


def make_first_partitions(apps, schema_editor):
    """Make this month's partition and the next three; a task makes later ones ahead of time."""
    now = datetime.datetime.now(datetime.UTC)
    months = [now.year * 12 + now.month - 1 + ahead for ahead in range(-1, 4)]
    for month in months:
        first, after = [f"{m // 12:04}-{m % 12 + 1:02}-01 00:00+00" for m in (month, month + 1)]
        name = f"usage_event_{month // 12:04}_{month % 12 + 1:02}"
        schema_editor.execute(
            f"CREATE TABLE {name} PARTITION OF usage_event FOR VALUES FROM ('{first}') TO ('{after}')"
        )


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [
        migrations.CreateModel(
            name='Card',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(default=quotas.models.identity.new_card_id, editable=False, max_length=24, unique=True)),
                ('name', models.CharField(max_length=100, unique=True)),
                ('memory_mib', models.PositiveIntegerField(blank=True, help_text='MiB; empty: unknown, which is never taken as 0.', null=True)),
                ('sharing_mode', models.CharField(choices=[('exclusive', 'One replica at a time'), ('shared', 'Several replicas share its memory'), ('partitioned', 'A fixed part of a card (MIG)'), ('pool', 'Models take turns on it')], default='exclusive', max_length=12)),
                ('profile', models.CharField(blank=True, help_text='Such as A100 80GB.', max_length=100)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='Pool',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='The model name clients ask for.', max_length=200, unique=True)),
                ('aliases', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, help_text='Other names clients may ask for.', size=None)),
                ('batch_slots', models.PositiveIntegerField(blank=True, help_text='Slots batch may hold while interactive work is about; a quarter by default.', null=True)),
                ('batch_slots_idle', models.PositiveIntegerField(blank=True, help_text='Slots batch may hold while nobody works interactively; all but one by default.', null=True)),
                ('batch_idle_after_s', models.PositiveIntegerField(default=60, help_text='Seconds without interactive work until batch may borrow.')),
                ('queue_bound_interactive', models.PositiveIntegerField(default=128)),
                ('queue_bound_batch', models.PositiveIntegerField(default=256)),
                ('max_output_tokens', models.PositiveIntegerField(blank=True, help_text='Largest max_tokens the pool takes; empty: the context.', null=True)),
                ('context', models.PositiveIntegerField(blank=True, help_text='Tokens of prompt and answer together; empty: unknown.', null=True)),
                ('note', models.TextField(blank=True, help_text="Shown to people beside the model's name.")),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='User',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, unique=True, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('share', models.PositiveSmallIntegerField(default=1, help_text='Weight in the fair share; 2 gets twice the service of 1 under contention.', validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100)])),
                ('time_zone', models.CharField(blank=True, max_length=64)),
                ('theme', models.CharField(blank=True, max_length=8)),
                ('wants_quota_mail', models.BooleanField(default=True, help_text='Mail at 80 and 100 % of a daily or monthly limit.')),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'verbose_name': 'user',
                'verbose_name_plural': 'users',
                'abstract': False,
            },
            managers=[
                ('objects', django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name='ApiKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(default=quotas.models.identity.new_key_id, editable=False, max_length=24, unique=True, verbose_name='key id')),
                ('name', models.CharField(max_length=100)),
                ('service_class', models.CharField(choices=[('interactive', 'Interactive'), ('batch', 'Batch')], max_length=12)),
                ('kind', models.CharField(choices=[('ordinary', 'Ordinary'), ('application', 'Application (its header names the end user)')], default='ordinary', max_length=12)),
                ('end_user_header', models.CharField(blank=True, help_text='Application keys only: the request header that names the end user.', max_length=64)),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('masked', models.CharField(editable=False, max_length=24)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField(blank=True, help_text='Empty: never.', null=True)),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('disabled_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='keys', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'key',
                'ordering': ['-created_at'],
            },
        ),
        migrations.CreateModel(
            name='DirectoryVersion',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ('version', models.BigIntegerField(default=1)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='directory_version_one_row')],
            },
        ),
        migrations.CreateModel(
            name='Group',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100, unique=True)),
                ('is_active', models.BooleanField(default=True, help_text='Off: every key of every member stops within seconds.')),
                ('note', models.TextField(blank=True)),
                ('owners', models.ManyToManyField(blank=True, help_text="May divide the group's quota among its members.", related_name='owned_groups', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.AddField(
            model_name='user',
            name='group',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='members', to='quotas.group'),
        ),
        migrations.CreateModel(
            name='LimitRow',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('level', models.CharField(choices=[('everyone', 'Everyone'), ('group', 'Group'), ('user', 'User'), ('key', 'Key')], max_length=8)),
                ('service_class', models.CharField(choices=[('interactive', 'Interactive'), ('batch', 'Batch')], max_length=12)),
                ('name', models.CharField(max_length=32, verbose_name='limit')),
                ('per', models.CharField(choices=[('key', 'each key'), ('person', 'each person, over all their keys'), ('group', 'the whole group')], max_length=8)),
                ('value', models.PositiveBigIntegerField(blank=True, help_text='Empty: no limit at this level.', null=True)),
                ('names', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, help_text='For limits that are a list: the models allowed.', null=True, size=None)),
                ('ends_at', models.DateTimeField(blank=True, help_text='Empty: lasting. Otherwise the row ends by itself.', null=True)),
                ('note', models.CharField(blank=True, max_length=200)),
                ('edition', models.PositiveIntegerField(default=1, editable=False)),
                ('set_at', models.DateTimeField(auto_now=True)),
                ('group', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='limits', to='quotas.group')),
                ('key', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='limits', to='quotas.apikey')),
                ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='limits', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'limit',
                'ordering': ['name', 'service_class', 'level'],
            },
        ),
        migrations.CreateModel(
            name='OldSecret',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('masked', models.CharField(editable=False, max_length=24)),
                ('valid_until', models.DateTimeField()),
                ('rotated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('key', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='old_secrets', to='quotas.apikey')),
            ],
        ),
        migrations.CreateModel(
            name='RejectedMinute',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('minute', models.DateTimeField()),
                ('key_id', models.CharField(max_length=24)),
                ('code', models.CharField(max_length=64)),
                ('count', models.BigIntegerField()),
            ],
            options={
                'verbose_name': 'minute of rejections',
                'db_table': 'usage_rejected_minute',
                'constraints': [models.UniqueConstraint(fields=('key_id', 'minute', 'code'), name='usage_rejected_once')],
            },
        ),
        migrations.CreateModel(
            name='Replica',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(default=quotas.models.identity.new_replica_id, editable=False, max_length=24, unique=True)),
                ('name', models.CharField(max_length=100, unique=True)),
                ('url', models.CharField(max_length=500, unique=True, verbose_name='address')),
                ('kind', models.CharField(choices=[('llamacpp', 'llama.cpp'), ('vllm', 'vLLM'), ('sglang', 'SGLang'), ('openai', 'Any OpenAI-compatible server')], max_length=12)),
                ('slots', models.PositiveIntegerField(help_text='Sequences it may work on at once; llama.cpp: exactly its total_slots.', validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(4096)])),
                ('prefill_budget', models.PositiveIntegerField(help_text='Prompt tokens that may be read at the same time.')),
                ('takes_priority', models.BooleanField(default=False, help_text='Its own scheduler honours a priority field.')),
                ('state', models.CharField(choices=[('active', 'Active'), ('draining', 'Draining: finishes what runs, takes nothing new'), ('disabled', 'Disabled')], default='active', max_length=12)),
                ('model', models.CharField(blank=True, help_text="The engine's own name; empty: as the pool.", max_length=200)),
                ('memory_mib', models.PositiveIntegerField(blank=True, help_text='Card memory it needs in MiB; empty: unknown.', null=True)),
                ('added_at', models.DateTimeField(auto_now_add=True)),
                ('card', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='replicas', to='quotas.card')),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='replicas', to='quotas.pool')),
            ],
            options={
                'verbose_name': 'engine replica',
                'ordering': ['pool__name', 'name'],
            },
        ),
        # Django cannot declare a partitioned table: the state learns the model as it is, the
        # database gets the table below. The partition key must be part of the primary key.
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name='UsageEvent',
                    fields=[
                        ('request_id', models.CharField(max_length=64, primary_key=True, serialize=False)),
                        ('arrived_at', models.DateTimeField()),
                        ('key_id', models.CharField(max_length=24)),
                        ('user_id', models.BigIntegerField()),
                        ('group_id', models.BigIntegerField(null=True)),
                        ('service_class', models.CharField(max_length=12)),
                        ('route', models.CharField(max_length=64)),
                        ('model', models.CharField(max_length=200)),
                        ('replica_id', models.CharField(max_length=24)),
                        ('outcome', models.CharField(max_length=32)),
                        ('status', models.PositiveSmallIntegerField()),
                        ('prompt_tokens', models.BigIntegerField()),
                        ('cached_tokens', models.BigIntegerField(null=True)),
                        ('completion_tokens', models.BigIntegerField()),
                        ('reasoning_tokens', models.BigIntegerField(null=True)),
                        ('estimated', models.BooleanField()),
                        ('queue_wait_ms', models.BigIntegerField(null=True)),
                        ('ttft_ms', models.BigIntegerField(null=True)),
                        ('duration_ms', models.BigIntegerField()),
                        ('finish_reason', models.CharField(max_length=32)),
                        ('error_code', models.CharField(max_length=64)),
                        ('stream', models.BooleanField()),
                        ('end_user', models.CharField(max_length=200)),
                        ('batch_id', models.CharField(max_length=64)),
                        ('client_request_id', models.CharField(max_length=200)),
                    ],
                    options={
                        'verbose_name': 'request',
                        'db_table': 'usage_event',
                        'ordering': ['-arrived_at'],
                        'indexes': [models.Index(fields=['user_id', 'arrived_at'], name='usage_event_user_time'), models.Index(fields=['key_id', 'arrived_at'], name='usage_event_key_time'), models.Index(fields=['arrived_at'], name='usage_event_time'), models.Index(condition=models.Q(('batch_id', ''), _negated=True), fields=['batch_id', 'arrived_at'], name='usage_event_batch')],
                    },
                ),
            ],
            database_operations=[
                migrations.RunSQL(USAGE_EVENT, "DROP TABLE usage_event"),
                migrations.RunPython(make_first_partitions, migrations.RunPython.noop),
            ],
        ),
        migrations.CreateModel(
            name='UsageHour',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hour', models.DateTimeField()),
                ('user_id', models.BigIntegerField()),
                ('group_id', models.BigIntegerField(null=True)),
                ('key_id', models.CharField(max_length=24)),
                ('model', models.CharField(max_length=200)),
                ('service_class', models.CharField(max_length=12)),
                ('batch_id', models.CharField(max_length=64)),
                ('end_user', models.CharField(max_length=200)),
                ('requests', models.BigIntegerField()),
                ('served', models.BigIntegerField()),
                ('failed', models.BigIntegerField()),
                ('aborted', models.BigIntegerField()),
                ('evicted', models.BigIntegerField()),
                ('estimated', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('reasoning_tokens', models.BigIntegerField()),
                ('queue_wait_ms', models.BigIntegerField()),
                ('ttft_ms', models.BigIntegerField()),
                ('ttft_count', models.BigIntegerField()),
                ('duration_ms', models.BigIntegerField()),
            ],
            options={
                'verbose_name': 'hour of usage',
                'db_table': 'usage_hour',
                'indexes': [models.Index(fields=['hour'], name='usage_hour_time'), models.Index(fields=['key_id', 'hour'], name='usage_hour_key_time'), models.Index(fields=['group_id', 'hour'], name='usage_hour_group_time')],
                'constraints': [models.UniqueConstraint(fields=('user_id', 'hour', 'key_id', 'model', 'service_class', 'batch_id', 'end_user', 'group_id'), name='usage_hour_once', nulls_distinct=False)],
            },
        ),
        migrations.CreateModel(
            name='WriterPosition',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ('epoch', models.CharField(max_length=64)),
                ('run_id', models.CharField(max_length=64)),
                ('stream_id', models.CharField(max_length=48)),
                ('moved_at', models.DateTimeField(auto_now=True)),
            ],
            options={
                'db_table': 'usage_writer_position',
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='usage_writer_one_row')],
            },
        ),
        migrations.AddConstraint(
            model_name='apikey',
            constraint=models.UniqueConstraint(condition=models.Q(('revoked_at__isnull', True)), fields=('owner', 'name'), name='apikey_one_live_name_per_owner', violation_error_message='You already have a key of this name.'),
        ),
        migrations.AddConstraint(
            model_name='apikey',
            constraint=models.CheckConstraint(condition=models.Q(('service_class__in', ['interactive', 'batch'])), name='apikey_class_is_known'),
        ),
        migrations.AddConstraint(
            model_name='apikey',
            constraint=models.CheckConstraint(condition=models.Q(('kind', 'application'), ('end_user_header', ''), _connector='OR'), name='apikey_header_only_on_application_keys', violation_error_message='Only an application key may name an end-user header.'),
        ),
        migrations.AddConstraint(
            model_name='limitrow',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('group__isnull', True), ('key__isnull', True), ('level', 'everyone'), ('user__isnull', True)), models.Q(('group__isnull', False), ('key__isnull', True), ('level', 'group'), ('user__isnull', True)), models.Q(('group__isnull', True), ('key__isnull', True), ('level', 'user'), ('user__isnull', False)), models.Q(('group__isnull', True), ('key__isnull', False), ('level', 'key'), ('user__isnull', True)), _connector='OR'), name='limit_target_matches_level', violation_error_message='Name exactly the group, user or key the level speaks of.'),
        ),
        migrations.AddConstraint(
            model_name='limitrow',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('level', 'key'), _negated=True), ('per', 'key'), _connector='OR'), name='limit_of_a_key_counts_per_key', violation_error_message='A limit set on a key counts for that key alone.'),
        ),
        migrations.AddConstraint(
            model_name='limitrow',
            constraint=models.CheckConstraint(condition=models.Q(('level', 'user'), ('per', 'group'), _negated=True), name='limit_of_a_user_is_not_per_group', violation_error_message='A user cannot be given a limit of the whole group.'),
        ),
        migrations.AddConstraint(
            model_name='limitrow',
            constraint=models.UniqueConstraint(condition=models.Q(('ends_at__isnull', True)), fields=('group', 'user', 'key', 'service_class', 'name', 'per'), name='limit_one_lasting_row_per_target', nulls_distinct=False, violation_error_message='This limit is already set; change that row.'),
        ),
        migrations.AddConstraint(
            model_name='limitrow',
            constraint=models.UniqueConstraint(condition=models.Q(('ends_at__isnull', False)), fields=('group', 'user', 'key', 'service_class', 'name', 'per'), name='limit_one_ending_row_per_target', nulls_distinct=False, violation_error_message='There is already a time-limited row; change that one.'),
        ),
        migrations.AddConstraint(
            model_name='replica',
            constraint=models.CheckConstraint(condition=models.Q(('slots__gte', 1)), name='replica_has_slots'),
        ),
    ]
