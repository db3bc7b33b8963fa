"""The REST application: flags, rollouts, verdicts, and the kill switch. Endpoints call one function of `flow` each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated

from fastapi import FastAPI, Header, Response
from pydantic import BaseModel, ConfigDict, Field

from canary import __version__
from canary.api import problems
from canary.api.flags import REFRESH_SECONDS, FlagCache
from canary.domain.errors import UnreachableError
from canary.flow.ports import Observer, Store
from canary.flow.tools import commands, reports

FIRST_READ_SECONDS = 3.0


class Order(BaseModel):
    """A person's order about a route's kill switch."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(min_length=1, max_length=commands.MAX_REASON, description="Why, in a sentence.")
    actor: str = Field(min_length=1, max_length=commands.MAX_REASON, description="Who.")


def create_app(
    store: Store,
    observer: Observer,
    *,
    refresh_seconds: float = REFRESH_SECONDS,
    clock: Callable[[], float] = time.time,
) -> FastAPI:
    """The API over one store.

    Args:
        refresh_seconds: how often the flag snapshot looks at the store.
        clock: seconds since the epoch.
    """
    cache = FlagCache(store, observer, refresh_seconds=refresh_seconds, clock=clock)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        cache.start()
        await asyncio.to_thread(cache.wait_first, FIRST_READ_SECONDS)
        try:
            yield
        finally:
            cache.close()

    app = FastAPI(
        title="Canary", version=__version__, lifespan=lifespan, openapi_url="/api/v1/openapi.json", docs_url=None, redoc_url=None
    )
    app.state.flags = cache
    problems.install(app, observer)
    _flags(app, cache)
    _rollouts(app, store, clock)
    _kill_switch(app, store, cache, clock)
    return app


def _flags(app: FastAPI, cache: FlagCache) -> None:
    @app.get("/api/v1/flags/snapshot")
    async def snapshot(if_none_match: Annotated[str | None, Header()] = None) -> Response:
        """All flags, from memory. `ETag` names the content; `Age` is how many seconds ago the store vouched for it."""
        published, age = cache.published, cache.age_seconds
        if published is None or age is None:
            raise UnreachableError("no flag snapshot has been read yet", remedy="Serve the baseline and ask again.")
        headers = {"ETag": published.etag, "Age": str(int(age)), "Cache-Control": "no-cache"}
        if if_none_match is not None and _matches(if_none_match, published.etag):
            return Response(status_code=304, headers=headers)
        return Response(published.body, media_type="application/json", headers=headers)

    @app.get("/healthz")
    async def healthz() -> dict[str, object]:
        """Whether the process answers, and how old its flags are."""
        return {"status": "ok", "version": __version__, "flags_age_seconds": cache.age_seconds}


def _matches(header: str, etag: str) -> bool:
    """If-None-Match by weak comparison (RFC 9110, 13.1.2)."""
    return header.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in header.split(","))


def _rollouts(app: FastAPI, store: Store, clock: Callable[[], float]) -> None:
    @app.get("/api/v1/rollouts")
    def rollouts() -> dict[str, object]:
        """Every route's rollout and flag."""
        with store.transaction() as tx:
            return {"rollouts": reports.overview(tx)}

    @app.get("/api/v1/rollouts/{route}")
    def rollout(route: str) -> dict[str, object]:
        """One route's rollout, its last decision with every gate, and its newest audit events."""
        with store.transaction() as tx:
            return reports.detail(tx, route)

    @app.get("/api/v1/routes/{route}/verdict")
    def verdict(route: str) -> dict[str, object]:
        """One small object for CI and rollout controllers; always 200 when the route exists."""
        with store.transaction() as tx:
            return asdict(reports.route_verdict(tx, route, clock()))


def _kill_switch(app: FastAPI, store: Store, cache: FlagCache, clock: Callable[[], float]) -> None:
    @app.post("/api/v1/routes/{route}/kill")
    def kill(route: str, order: Order) -> dict[str, object]:
        """Turn the kill switch on; a second call changes nothing."""
        flag = commands.kill(store, route, order.reason, order.actor, clock())
        cache.refresh()
        return {"route": route, "killed": flag.killed, "kill_reason": flag.kill_reason, "weight": flag.weight}

    @app.post("/api/v1/routes/{route}/unkill")
    def unkill(route: str, order: Order) -> dict[str, object]:
        """Undo a kill: the route starts again in shadow with a new attempt."""
        rollout = commands.unkill(store, route, order.reason, order.actor, clock())
        cache.refresh()
        return {"route": route, "killed": False, "state": rollout.state.value, "attempt": rollout.attempt}
