"""Holds a replica through the gateway and notices when the hold is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import httpx

from gateway.fleet.holds import LEASE_S
from gateway.measure.drive import Stopped, Void

RENEW_S = 2.0
TIMEOUT_S = 2.0
DRAIN_S = 900.0
LOOK_S = 0.5


class GatewayHold:
    """One hold: taken on entry, renewed in the background, given back on exit."""

    def __init__(
        self,
        gateway_url: str,
        bearer: Callable[[], str],
        *,
        replica_id: str,
        run: str,
        stop: asyncio.Event,
    ) -> None:
        self._url = gateway_url.rstrip("/")
        self._bearer = bearer
        self._replica_id = replica_id
        self._run = run
        self._stop = stop
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)
        self._until_s = time.monotonic()
        self._renewed_s = 0.0
        self._problem = ""
        self._task: asyncio.Task[None] | None = None

    def expect(self, seconds: float) -> None:
        """Say how long the hold will still be needed; arrivals are told."""
        self._until_s = time.monotonic() + seconds

    async def __aenter__(self) -> GatewayHold:
        self._problem = await self._renew()
        if self._problem:
            await self._http.aclose()
            raise Void(f"The engine could not be held: {self._problem}")
        self._task = asyncio.create_task(self._keep(), name="hold")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        body = {"replica_id": self._replica_id, "run": self._run}
        await self._ask("DELETE", body)  # if it does not arrive, the lease ends by itself
        await self._http.aclose()

    def check(self) -> None:
        """Raise when the gateway may have given the engine to others meanwhile."""
        if time.monotonic() - self._renewed_s > LEASE_S - 1.0:
            raise Void(f"The hold was lost: {self._problem or 'the gateway did not answer'}")

    async def drained(self) -> None:
        """Wait until every gateway process sees the hold and none of our work is left."""
        until_s = time.monotonic() + DRAIN_S
        while True:
            if self._stop.is_set():
                raise Stopped
            engine = await self.engine()
            held = engine.get("held_interactive", 0) + engine.get("held_batch", 0)
            if engine.get("state") == "measuring" and held == 0:
                return
            if time.monotonic() > until_s:
                raise Void(
                    f"The engine did not become free within {DRAIN_S:.0f} s: it is "
                    f"{engine.get('state', 'unknown')} and {held} slots are held."
                )
            await asyncio.sleep(LOOK_S)

    async def engine(self) -> dict[str, Any]:
        """Return how the gateway sees this engine now."""
        return (await self.engines()).get(self._replica_id, {})

    async def engines(self) -> dict[str, dict[str, Any]]:
        """Return how the gateway sees every engine now, by replica id."""
        status, live = await self._ask("GET", None)
        if status != 200:
            return {}
        return {engine["replica_id"]: engine for engine in live.get("engines", ())}

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            self._problem = await self._renew()

    async def _renew(self) -> str:
        body = {
            "replica_id": self._replica_id,
            "run": self._run,
            "why": "Its capacity is being measured; it is back by itself.",
            "seconds": max(1.0, self._until_s - time.monotonic()),
        }
        status, said = await self._ask("POST", body)
        if status == 200:
            self._renewed_s = time.monotonic()
            return ""
        return str(said.get("error", {}).get("message") or f"the gateway answered {status}")

    async def _ask(self, method: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        path = "/internal/live" if method == "GET" else "/internal/hold"
        headers = {"Authorization": f"Bearer {self._bearer()}"}
        try:
            answer = await self._http.request(method, self._url + path, json=body, headers=headers)
            found = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            return 0, {"error": {"message": f"the gateway did not answer ({error!r})"}}
        return answer.status_code, found if isinstance(found, dict) else {}


class NoHold:
    """For an engine that no gateway serves; its own numbers still prove that it is idle."""

    def expect(self, seconds: float) -> None:
        """Tell nobody."""

    async def __aenter__(self) -> NoHold:
        return self

    async def __aexit__(self, *error: object) -> None:
        return

    def check(self) -> None:
        """Nothing can be lost."""

    async def drained(self) -> None:
        """Nothing of ours runs there."""

    async def engines(self) -> dict[str, dict[str, Any]]:
        """Nobody watches."""
        return {}
