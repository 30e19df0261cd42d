"""Cards, pools and replicas: what the gateway may send work to.

The three are kept apart from the first day, so that one card can later hold several models that
take turns: a replica is on one card, a pool is the replicas of one model, wherever they are.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from quotas.models.audit import audited
from quotas.models.identity import new_card_id, new_replica_id


@audited()
class Card(models.Model):
    """One accelerator."""

    class SharingMode(models.TextChoices):
        EXCLUSIVE = "exclusive", "One replica at a time"
        SHARED = "shared", "Several replicas share its memory"
        PARTITIONED = "partitioned", "A fixed part of a card (MIG)"
        POOL = "pool", "Models take turns on it"

    public_id = models.CharField(max_length=24, unique=True, default=new_card_id, editable=False)
    name = models.CharField(max_length=100, unique=True)
    memory_mib = models.PositiveIntegerField(
        null=True, blank=True, help_text="MiB; empty: unknown, which is never taken as 0."
    )
    sharing_mode = models.CharField(
        max_length=12, choices=SharingMode.choices, default=SharingMode.EXCLUSIVE
    )
    profile = models.CharField(max_length=100, blank=True, help_text="Such as A100 80GB.")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


@audited()
class Pool(models.Model):
    """The replicas of one model and how the two classes share them. Empty: the default."""

    name = models.CharField(
        max_length=200, unique=True, help_text="The model name clients ask for."
    )
    aliases = ArrayField(
        models.CharField(max_length=200),
        default=list,
        blank=True,
        help_text="Other names clients may ask for.",
    )
    batch_slots = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Slots batch may hold while interactive work is about; a quarter by default.",
    )
    batch_slots_idle = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Slots batch may hold while nobody works interactively; all but one by default.",
    )
    batch_idle_after_s = models.PositiveIntegerField(
        default=60, help_text="Seconds without interactive work until batch may borrow."
    )
    queue_bound_interactive = models.PositiveIntegerField(default=128)
    queue_bound_batch = models.PositiveIntegerField(default=256)
    max_output_tokens = models.PositiveIntegerField(
        null=True, blank=True, help_text="Largest max_tokens the pool takes; empty: the context."
    )
    context = models.PositiveIntegerField(
        null=True, blank=True, help_text="Tokens of prompt and answer together; empty: unknown."
    )
    note = models.TextField(blank=True, help_text="Shown to people beside the model's name.")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


@audited("sealed_key")
class Replica(models.Model):
    """One engine server holding one model."""

    class Kind(models.TextChoices):
        LLAMACPP = "llamacpp", "llama.cpp"
        VLLM = "vllm", "vLLM"
        SGLANG = "sglang", "SGLang"
        OPENAI = "openai", "Any OpenAI-compatible server"

    class State(models.TextChoices):
        ACTIVE = "active", "Active"
        DRAINING = "draining", "Draining: finishes what runs, takes nothing new"
        DISABLED = "disabled", "Disabled"

    public_id = models.CharField(max_length=24, unique=True, default=new_replica_id, editable=False)
    name = models.CharField(max_length=100, unique=True)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="replicas")
    card = models.ForeignKey(
        Card, null=True, blank=True, on_delete=models.SET_NULL, related_name="replicas"
    )
    url = models.CharField(max_length=500, unique=True, verbose_name="address")
    kind = models.CharField(max_length=12, choices=Kind.choices)
    slots = models.PositiveIntegerField(
        validators=[MinValueValidator(1), MaxValueValidator(4096)],
        help_text="Sequences it may work on at once; llama.cpp: exactly its total_slots.",
    )
    prefill_budget = models.PositiveIntegerField(
        help_text="Prompt tokens that may be read at the same time."
    )
    takes_priority = models.BooleanField(
        default=False, help_text="Its own scheduler honours a priority field."
    )
    state = models.CharField(max_length=12, choices=State.choices, default=State.ACTIVE)
    model = models.CharField(
        max_length=200, blank=True, help_text="The engine's own name; empty: as the pool."
    )
    memory_mib = models.PositiveIntegerField(
        null=True, blank=True, help_text="Card memory it needs in MiB; empty: unknown."
    )
    # The key it asks of its callers, sealed; the audit trail has the day it was entered instead.
    sealed_key = models.TextField(blank=True, default="", editable=False)
    key_set_at = models.DateTimeField(
        null=True, blank=True, editable=False, verbose_name="key entered"
    )
    added_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "engine replica"
        ordering = ["pool__name", "name"]
        constraints = [
            models.CheckConstraint(name="replica_has_slots", condition=Q(slots__gte=1)),
        ]

    def __str__(self) -> str:
        return self.name
