"""Sets each limit at each level for each class, and sees the gateway refuse because of it.

A program, not a test: it runs inside an installation, `manage.py shell -c "from
tests.faults.limit_matrix import main; main(URL)"`, and prints what did not bind. Page, REST API
and shell take turns.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from django.core.management import call_command
from django.test import Client
from django.test.utils import setup_test_environment

from quotas.limits import LimitSpec, offered
from quotas.models import ApiKey, Pool, User
from quotas.services import engines, keys, limits, people
from quotas.services.limits import EVERYONE, Holder
from tests.portal.test_limit_matrix import by_api, by_page
from tests.rig.chat import chat

LEVELS = ("everyone", "group", "user", "key")
IN_FORCE_S = 5.0
HELD_S = 0.4  # how long the engine holds a request with this mark
HELD = "[mark:matrix/held]"
# So small that the second request of a person, or the third of three at once, is refused.
SMALL: dict[str, Any] = {
    "in_flight": 1, "queued": 1, "max_prompt_tokens": 20, "max_output_tokens": 10,
    "allowed_models": ["other"], "requests_per_minute": 1, "enqueued_batch_tokens": 1,
}  # fmt: skip
TOKENS = 60
REFUSED_AS = {
    "in_flight": "queue_full", "queued": "queue_full", "max_prompt_tokens": "prompt_too_long",
    "max_output_tokens": "max_tokens_too_large", "allowed_models": "model_not_found",
    "enqueued_batch_tokens": "token_limit_exceeded",
}  # fmt: skip
# Of these two each is seen at once only while the other leaves little room.
BESIDE = {"in_flight": ("queued", 1), "queued": ("in_flight", 1)}


def by_shell(browser: Client, level: str, key: ApiKey, row: dict[str, Any]) -> int:
    """Set a limit with the command; returns 200 when it was taken."""
    assert key.owner.group is not None
    named = {"group": key.owner.group.name, "user": key.owner.username, "key": key.public_id}
    flag = f"--{level}={named[level]}" if level in named else "--everyone"
    value = ",".join(row["names"]) if "names" in row else str(row["value"])
    call_command(
        "setlimit", flag, f"--class={row['service_class']}", f"--per={row['per']}",
        f"--{row['name'].replace('_', '-')}={value}", "--json", stdout=_Nowhere(),
    )  # fmt: skip
    return 200


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)


WAYS = (by_page, by_api, by_shell)


class Person:
    """Somebody with a group, one key, and a connection to the gateway."""

    def __init__(self, number: int, service_class: str, url: str) -> None:
        name = f"matrix{number}"
        self.owner = people.ensure_user(username=name)
        people.move(user=self.owner, group=people.ensure_group(name=name))
        made = keys.issue(owner=self.owner, name=name, service_class=service_class)
        self.key, self.service_class = made.key, service_class
        headers = {"authorization": f"Bearer {made.secret}"}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=30, trust_env=False)

    def set(self, name: str, value: int) -> None:
        """Set a limit of this person, over the key and over all keys."""
        for per in ("key", "person"):
            limits.set_limit(
                holder=Holder(user=self.owner), service_class=self.service_class, name=name,
                per=per, value=value,
            )  # fmt: skip

    def ask(self, delay_s: float = 0.0, mark: str = HELD) -> dict[str, Any]:
        """Send a chat; returns its error, {} when it was answered."""
        time.sleep(delay_s)
        body = chat("witness", "", stream=False, max_tokens=16)
        body["messages"][0]["content"] = "word " * 40 + mark
        return self._error(self.http.post("/v1/chat/completions", json=body))

    def submit(self) -> dict[str, Any]:
        """Submit a job of one line; returns its error."""
        url, body = "/v1/chat/completions", chat("witness", "matrix/line", stream=False)
        line = json.dumps({"custom_id": "1", "method": "POST", "url": url, "body": body})
        file = ("in.jsonl", line.encode())
        stored = self.http.post("/v1/files", data={"purpose": "batch"}, files={"file": file}).json()
        job = {"input_file_id": stored["id"], "endpoint": url, "completion_window": "24h"}
        return self._error(self.http.post("/v1/batches", json=job))

    @staticmethod
    def _error(answer: httpx.Response) -> dict[str, Any]:
        return {} if answer.status_code == 200 else dict(answer.json()["error"])

    def errors(self, name: str) -> list[dict[str, Any]]:
        """Do what the limit of that name would refuse in part; returns the errors."""
        if name == "enqueued_batch_tokens":
            return [self.submit()]
        if name not in BESIDE:
            return [self.ask(mark=""), self.ask(mark="")]
        with ThreadPoolExecutor(3) as together:
            return list(together.map(self.ask, (0.0, HELD_S / 4, HELD_S / 2)))


def is_because_of(error: dict[str, Any], name: str) -> bool:
    """Tell whether a refusal names this limit."""
    if name in REFUSED_AS:
        return str(error.get("code", "")).startswith(REFUSED_AS[name])
    return bool(error.get("quota", {}).get("name") == name)


def soon(what: Callable[[], bool]) -> bool:
    """Try until it is so, no longer than an edit may take."""
    until_s = time.monotonic() + IN_FORCE_S
    while not what():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)
    return True


def cases() -> Iterator[tuple[LimitSpec, str, str]]:
    """Yield every limit at every level that has it, for each class in which it can bind."""
    for spec in offered():
        for level, service_class in itertools.product(LEVELS, spec.classes):
            if level != "key" or "key" in spec.pers:
                yield spec, level, service_class


def try_one(person: Person, spec: LimitSpec, level: str, way: Any, browser: Client) -> str:
    """Set the limit and clear it again; returns what was wrong, "" when nothing was."""
    name, per = spec.name, spec.usual_per(level)
    holder = {
        "everyone": EVERYONE, "group": Holder(group=person.owner.group),
        "user": Holder(user=person.owner), "key": Holder(key=person.key),
    }[level]  # fmt: skip
    if name in BESIDE:
        person.set(*BESIDE[name])
    if not soon(lambda: not any(person.errors(name))):
        return "was refused before the limit was set"
    row: dict[str, Any] = {"service_class": person.service_class, "name": name, "per": per}
    small = SMALL.get(name, TOKENS)
    row |= {"names": small} if spec.is_list else {"value": small}
    if way(browser, level, person.key, row) != 200:
        return "was not taken"
    binds = soon(lambda: any(is_because_of(error, name) for error in person.errors(name)))
    limits.clear_limit(holder=holder, service_class=person.service_class, name=name, per=per)
    free = soon(lambda: not any(is_because_of(e, name) for e in person.errors(name)))
    return ("" if binds else "does not bind") or ("" if free else "binds after it was cleared")


def main(url: str) -> None:
    """Try them all and print, as JSON, how many there were and what was wrong."""
    setup_test_environment()
    for pool in Pool.objects.all():
        engines.update_pool(pool=pool, queue_bound_interactive=1000, queue_bound_batch=1000)
    admin = people.ensure_user(username="matrix-admin")
    User.objects.filter(pk=admin.pk).update(is_staff=True, is_superuser=True)
    browser = Client()
    browser.force_login(User.objects.get(pk=admin.pk))
    wrong, count = {}, 0
    for count, (spec, level, service_class) in enumerate(cases(), start=1):
        way = WAYS[count % len(WAYS)]
        person = Person(count, service_class, url)
        found = try_one(person, spec, level, way, browser)
        if found:
            wrong[f"{spec.name} for {level}, {service_class}, {way.__name__}"] = found
    print(json.dumps({"cases": count, "wrong": wrong}))
