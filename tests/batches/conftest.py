"""People with keys, a model to name, and a folder for files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from quotas.models import Pool, User
    from tests.batches.helpers import ApiClient


@pytest.fixture(autouse=True)
def files_folder(tmp_path: Path, settings: Any, redis_url: str) -> Path:
    """Keep stored files in the test's own folder."""
    settings.MEDIA_ROOT = tmp_path / "files"
    return tmp_path / "files"


@pytest.fixture(autouse=True)
def fresh_source(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ask the gateway of this test, and leave no connection to it behind."""
    from portal.status import source

    monkeypatch.setattr(source, "_source", None)
    yield
    if source._source is not None:
        source._source._client.close()


@pytest.fixture
def pool(db: None) -> Pool:
    """Return the one model that is served."""
    from quotas.models import Pool
    from tests.batches.helpers import MODEL

    return Pool.objects.create(name=MODEL, aliases=["small"])


@pytest.fixture
def api(alice: User, pool: Pool) -> ApiClient:
    """Return Alice with a batch key."""
    from tests.batches.helpers import ApiClient

    return ApiClient(alice)


@pytest.fixture
def stranger(charlie: User) -> ApiClient:
    """Return Charlie with a batch key."""
    from tests.batches.helpers import ApiClient

    return ApiClient(charlie)
