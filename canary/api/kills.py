"""The kill switch over HTTP: kill and unkill one route or all, drills, and what replicas and clients tell each other of kills.

A kill touches memory and disk only, on threads of its own, so that it is answered while everything else waits for the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, FastAPI, Header, Request, Response
from pydantic import Field

from canary.api.deps import Api, actor_of
from canary.api.desk import KillDesk
from canary.api.holders import CLIENT_HEADER, HOLDS_HEADER
from canary.api.peers import CLIENTS_PATH, PATH, answer, check_token
from canary.api.schemas import WRITING, Order, Strict, problems
from canary.domain.errors import RequestError
from canary.domain.kills import ALL, MAX_EPOCH
from canary.flow import kill_drill
from canary.kills.replicas import DRILL_PATH, TOKEN_HEADER

T = TypeVar("T")
SCHEDULER = "scheduler"  # who a drill of the job is by, in the audit log


class DrillOrder(Strict):
    """An order to run a kill drill."""

    actor: str | None = Field(default=None, min_length=1, max_length=500, pattern=r"\S")
    wait_seconds: float = Field(default=kill_drill.WAIT_SECONDS, ge=0, le=60, description="How long clients may take.")


class Exchange(Strict):
    """Kill orders between replicas."""

    orders: list[dict[str, Any]] = Field(max_length=100_000)
    digest: str = Field(max_length=100)


class Asked(Strict):
    """Which clients hold a kill epoch."""

    kill_epoch: int = Field(ge=0, le=MAX_EPOCH)


def router(api: Api) -> APIRouter:
    """Everything about kills; its lifespan is the desk's."""
    desk = api.kills

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        desk.start()
        try:
            yield
        finally:
            await asyncio.to_thread(desk.close)

    made = APIRouter(tags=["kill"], lifespan=lifespan)
    _one(made, desk)
    _all(made, desk)
    _drill(made, desk)
    _peers(made, desk)
    return made


async def _aside(desk: KillDesk, act: Callable[..., T], *given: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(desk.threads, act, *given)


def _one(made: APIRouter, desk: KillDesk) -> None:
    @made.post("/api/v1/routes/{route}/kill", responses=problems(*WRITING))
    async def kill(route: str, order: Order, request: Request) -> dict[str, object]:
        """Turn the kill switch on. `settled` says whether the database has it too; it is served and on disk in any case."""
        if route == ALL:
            raise RequestError("is no route", where="/route", remedy="Post to /api/v1/kill to kill all routes.")
        taken = await _aside(desk, desk.kill, route, order.reason, actor_of(request, order.actor))
        found = {"kill_id": taken.order.order_id, "kill_epoch": taken.order.epoch, "settled": taken.settled}
        return {"route": route, "killed": True, "kill_reason": taken.kill_reason, "weight": 0, **found}

    @made.post("/api/v1/routes/{route}/unkill", responses=problems(*WRITING))
    async def unkill(route: str, order: Order, request: Request) -> dict[str, object]:
        """Undo a kill: the route starts again in shadow with a new attempt."""
        actor = actor_of(request, order.actor)
        rollout = await asyncio.to_thread(desk.unkill, route, order.reason, actor)
        return {"route": route, "killed": False, "state": rollout.state.value, "attempt": rollout.attempt}


def _all(made: APIRouter, desk: KillDesk) -> None:
    @made.post("/api/v1/kill", responses=problems(*WRITING))
    async def kill_all(order: Order, request: Request) -> dict[str, object]:
        """Turn the kill switch of every route on, of those to come too."""
        taken = await _aside(desk, desk.kill, ALL, order.reason, actor_of(request, order.actor))
        found = {"kill_id": taken.order.order_id, "kill_epoch": taken.order.epoch, "settled": taken.settled}
        return {"scope": ALL, "killed": True, "kill_reason": taken.order.sentence, **found}

    @made.post("/api/v1/unkill", responses=problems(*WRITING))
    async def unkill_all(order: Order, request: Request) -> dict[str, object]:
        """Undo the kill of all routes: those that it killed start again in shadow; one killed for itself stays killed."""
        actor = actor_of(request, order.actor)
        revived = await asyncio.to_thread(desk.unkill_all, order.reason, actor)
        return {"scope": ALL, "killed": False, "routes": [rollout.route for rollout in revived]}

    @made.get("/api/v1/kills", responses=problems())
    async def standing() -> dict[str, object]:
        """The kills that stand, from memory, and how many orders the database does not have yet."""
        known = desk.board.known
        scopes = sorted({order.scope for order in known.orders.values()})
        kills = [order.to_dict() for scope in scopes for order in known.standing(scope)]
        return {"kills": kills, "epoch": known.epoch, "kill_file": dict(desk.board.named), "pending": desk.settler.pending}


def _drill(made: APIRouter, desk: KillDesk) -> None:
    @made.post("/api/v1/kill/drill", responses=problems(*WRITING))
    async def drill(order: DrillOrder, request: Request) -> dict[str, object]:
        """Kill and revive the drill's flag, and say how fast every connected client held the kill."""
        actor = actor_of(request, order.actor)
        found = await asyncio.to_thread(lambda: desk.drill(actor, wait_seconds=order.wait_seconds))
        return found.to_dict()

    @made.post("/api/v1/flags/held", status_code=204, responses=problems(*WRITING))
    async def held(
        client: Annotated[str | None, Header(alias=CLIENT_HEADER)] = None,
        holds: Annotated[str | None, Header(alias=HOLDS_HEADER)] = None,
    ) -> Response:
        """A client says which snapshot it holds, as `VERSION.KILL_EPOCH`."""
        if not desk.holders.note(client, holds):
            raise RequestError("is not VERSION.KILL_EPOCH, or no client is named", where=HOLDS_HEADER, remedy="See kill.md.")
        return Response(status_code=204)


def _peers(made: APIRouter, desk: KillDesk) -> None:
    @made.post(PATH, responses=problems(*WRITING, 403))
    async def exchange(body: Exchange, token: Annotated[str | None, Header(alias=TOKEN_HEADER)] = None) -> dict[str, object]:
        """Kill orders of another replica, for those that it does not know."""
        check_token(desk.peers.token, token)
        return await _aside(desk, answer, desk.board, body.model_dump())

    @made.post(CLIENTS_PATH, responses=problems(*WRITING, 403))
    async def clients(body: Asked, token: Annotated[str | None, Header(alias=TOKEN_HEADER)] = None) -> dict[str, object]:
        """The clients of this replica, and for how many seconds they have held a kill epoch."""
        check_token(desk.peers.token, token)
        return {"connected": sorted(desk.holders.connected()), "reached": dict(desk.holders.reached(body.kill_epoch))}

    @made.post(DRILL_PATH, responses=problems(*WRITING, 403))
    async def drill(token: Annotated[str | None, Header(alias=TOKEN_HEADER)] = None) -> dict[str, object]:
        """Run a kill drill for a scheduler that serves no flags."""
        check_token(desk.peers.token, token)
        found = await asyncio.to_thread(desk.drill, SCHEDULER)
        return found.to_dict()
