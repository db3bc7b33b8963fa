"""The REST application: every router behind one gate. Endpoints call one function of `flow` each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import APIRouter, FastAPI

from canary import __version__
from canary.api import kills, ofrep, problems, signed
from canary.api.actions import ACTIONS
from canary.api.auth import Gate
from canary.api.deps import Api
from canary.api.desk import KillDesk
from canary.api.document import EscapedJSON, describe
from canary.api.flags import REFRESH_SECONDS, FlagCache
from canary.api.idempotency import Repeats
from canary.api.keyring import KeyRing
from canary.api.routes import audit, intake, jobs, keys, pairs, pins, policies, rollouts, service
from canary.flow.ports import Observer, Store
from canary.kills.board import KillBoard

FIRST_READ_SECONDS = 3.0

# One line per resource. A router's own lifespan is run with the application's; its endpoints need rows in `api.actions`.
ROUTERS: tuple[Callable[[Api], APIRouter], ...] = (
    ofrep.router,
    signed.router,
    service.router,
    rollouts.router,
    kills.router,
    policies.router,
    pairs.router,
    pins.router,
    jobs.router,
    audit.router,
    keys.router,
    intake.router,
)


def create_app(
    store: Store,
    observer: Observer,
    *,
    refresh_seconds: float = REFRESH_SECONDS,
    clock: Callable[[], float] = time.time,
    home: Path | None = None,
    board: KillBoard | None = None,
    peers: Sequence[str] = (),
    peer_token: str | None = None,
) -> FastAPI:
    """The API over one store.

    Args:
        refresh_seconds: how often the flag snapshot looks at the store.
        clock: seconds since the epoch.
        home: the folder for what must outlive the process, such as the digests of keys; None keeps nothing on disk.
        board: the kills that are known here; by default those of the home's journal and kill file.
        peers: base URLs of the other replicas, which hear of every kill at once.
        peer_token: the secret that all replicas share.
    """
    known = board or KillBoard(observer, home, clock=clock)
    cache = FlagCache(store, observer, refresh_seconds=refresh_seconds, clock=clock, board=known, home=home)
    desk = KillDesk(store, observer, cache, peers=peers, peer_token=peer_token, clock=clock)
    ring = KeyRing(store, observer, home, clock=clock)
    api = Api(store, observer, cache, ring, desk, clock, home)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        cache.start()
        ring.start()
        await asyncio.to_thread(cache.wait_first, FIRST_READ_SECONDS)
        await asyncio.to_thread(ring.wait_first, FIRST_READ_SECONDS)
        try:
            yield
        finally:
            ring.close()
            cache.close()

    app = FastAPI(
        title="Canary",
        version=__version__,
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        default_response_class=EscapedJSON,
    )
    app.state.flags = cache
    app.state.api = api
    problems.install(app, observer)
    for router in ROUTERS:
        app.include_router(router(api))
    describe(app)
    app.add_middleware(Gate, ring=ring, entries=ACTIONS, repeats=Repeats(store, clock), clock=clock)
    return app
