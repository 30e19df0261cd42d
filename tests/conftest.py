"""Gives every test real stores, people, and no way out to the network.

The addresses are put into the environment here, before Django's settings are read; the servers
behind them start only when the first test asks for them. Addresses that are already set are used
as they are, and nothing is started.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.rig import network, workers
from tests.rig.fixtures import *  # noqa: F403  (pytest finds fixtures by their names here)
from tests.rig.stores import SessionStores

GIVEN = set(os.environ)
STORES = SessionStores()
STORES.announce(os.environ)
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

from django.conf import settings  # noqa: E402  (reads the environment made above)

# A hash that is slow on purpose has no place in a suite that makes hundreds of people.
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
network.block()

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling

    from quotas.models import Group, User


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Start each worker as this run was started: it has stores of its own."""
    for name in set(os.environ) - GIVEN:
        del os.environ[name]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Deal the tests our way."""
    return workers.Dealer(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order a worker's tests; alone they stay as they are shuffled."""
    if hasattr(config, "workerinput"):
        workers.longest_first(items)


def pytest_unconfigure() -> None:
    """Stop what this run started, also after Ctrl-C."""
    STORES.stop()


@pytest.fixture(scope="session")
def database() -> str:
    """Return the address of a running PostgreSQL."""
    return STORES.database()


@pytest.fixture(scope="session")
def redis_server() -> str:
    """Return the address of a running Valkey or Redis; its contents are nobody's."""
    return STORES.redis()


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """Return the address of a Valkey or Redis that is empty at the start of the test."""
    STORES.flush()
    return redis_server


@pytest.fixture(scope="session")
def django_db_keepdb(database: str) -> bool:
    """Tell pytest-django whether its database is there already, migrated and empty."""
    return STORES.has_migrated_database


@pytest.fixture(scope="session")
def django_db_modify_db_settings_xdist_suffix() -> None:
    """Keep the database's name: a worker's server is nobody else's."""


@pytest.fixture
def group(db: None) -> Group:
    """Return the group Alice and Bob share."""
    from quotas.models import Group

    return Group.objects.create(name="astronomy")


def _person(name: str, **fields: Any) -> User:
    from quotas.models import User

    return User.objects.create_user(name, f"{name}@example.org", "correct horse", **fields)


@pytest.fixture
def alice(group: Group) -> User:
    """Return the owner of what a test is about."""
    return _person("alice", group=group)


@pytest.fixture
def bob(group: Group) -> User:
    """Return a member of Alice's group."""
    return _person("bob", group=group)


@pytest.fixture
def charlie(db: None) -> User:
    """Return a stranger: signed in, but of no group."""
    return _person("charlie")


@pytest.fixture
def admin(db: None) -> User:
    """Return an administrator."""
    return _person("root", is_staff=True, is_superuser=True)


@pytest.fixture(autouse=True)
def _loopback_only() -> Iterator[None]:
    """Fail the test that tried to talk to another machine, even when it hid the error."""
    network.forget()
    yield
    assert not network.refused(), f"tests talk to this machine only: {network.refused()}"
