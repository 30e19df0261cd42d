"""Any other server that speaks OpenAI's API: alive or not, and what it calls its models."""

from __future__ import annotations

from gateway.engines.base import (
    UNKNOWN,
    EngineFacts,
    EngineReading,
    Health,
    Page,
    Pages,
    model_names,
    plain_health,
)


class OpenAiCompatible:
    """Adapter for a server of which nothing but the API is known."""

    kind: str = "openai"
    health_paths: tuple[str, ...] = ("/health", "/v1/models")
    reading_paths: tuple[str, ...] = ()
    facts_paths: tuple[str, ...] = ("/v1/models",)

    def health(self, page: Page) -> Health:
        """Judge whichever page exists; being asked for a key is a sign of life too."""
        if page.status in (401, 403):
            return Health.OK
        return plain_health(page)

    def reading(self, pages: Pages) -> EngineReading:
        """Say that nothing is known: our own counts admit, as everywhere."""
        return UNKNOWN

    def facts(self, pages: Pages) -> EngineFacts:
        """Read the model names."""
        names = model_names(pages)
        return EngineFacts(kind=self.kind, model=names[0] if names else None, models=names)

    def advice(self, facts: EngineFacts, pages: Pages) -> tuple[str, ...]:
        """Say what an admin has to find out."""
        lines = [
            "This engine is of a kind Fairway does not know: enter its slots, i.e. how many "
            "requests it answers at the same time without making one wait."
        ]
        if not facts.models:
            lines.insert(0, "It lists no models at /v1/models: is the address right?")
        return tuple(lines)
