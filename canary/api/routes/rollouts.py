"""Rollouts, verdicts, evidence, and what a person orders about one route."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from pydantic import Field

from canary.api.deps import Api, actor_of, caller_of, etag_of, expecting_rollout, page, place_of, require_match
from canary.api.schemas import PAGE, WRITING, Cursor, Limit, Order, RouteName, problems
from canary.domain.access import Action
from canary.domain.errors import ForbiddenError
from canary.domain.rollout import Rollout
from canary.flow.attempt import rollout_of
from canary.flow.tools import commands, reports

Command = Callable[..., Rollout]


class Retry(Order):
    """An order to try again."""

    now: bool = Field(default=False, description="End the cool-down, too; only who may approve may.")


# What a person may order, and whether the order must say which state it is about: an abort is right in every state.
ORDERS: Mapping[str, tuple[Command, bool, str]] = {
    "pause": (commands.pause, True, "Hold the rollout where it is: it keeps its weight, and its thresholds stay armed."),
    "resume": (commands.resume, True, "Let a held rollout go on where it stopped, with its evidence and its weight."),
    "retry": (commands.retry, True, "Open the next attempt of a rolled back or held rollout, in shadow."),
    "approve": (commands.approve, True, "Agree to the next stage: the next decision that finds all gates passing moves there."),
    "reject": (commands.reject, True, "Refuse the next stage: the rollout is held where it is."),
    "abort": (commands.abort, False, "End the attempt: weight 0 at once; with nothing in progress nothing changes."),
}


def router(api: Api) -> APIRouter:
    """Reading rollouts, and ordering."""
    made = APIRouter()
    _listings(made, api)
    _one(made, api)
    for name, (command, guarded, said) in ORDERS.items():
        _order(made, api, name, command, guarded, said)
    return made


def _listings(made: APIRouter, api: Api) -> None:
    def listed(request: Request, limit: int, cursor: str | None) -> tuple[list[dict[str, Any]], str | None]:
        after = place_of(cursor, "rollouts", str)
        caller = caller_of(request)
        with api.store.transaction() as tx:
            found = [
                r for r in reports.overview(tx) if caller.sees(str(r["route"])) and (after is None or str(r["route"]) > after)
            ]
        return page(found, limit, "rollouts", lambda row: row["route"])

    @made.get("/api/v1/rollouts", responses=problems(), tags=["rollouts"])
    def rollouts(request: Request, limit: Limit = PAGE, cursor: Cursor = None) -> dict[str, object]:
        """Every route's rollout and flag, by route."""
        shown, following = listed(request, limit, cursor)
        return {"rollouts": shown, "next": following}

    @made.get("/api/v1/routes", responses=problems(), tags=["routes"])
    def routes(request: Request, limit: Limit = PAGE, cursor: Cursor = None) -> dict[str, object]:
        """Every route with its state, weight and kill switch, by name."""
        shown, following = listed(request, limit, cursor)
        names = ("route", "state", "stage", "weight", "killed")
        return {"routes": [{name: row[name] for name in names} for row in shown], "next": following}


def _one(made: APIRouter, api: Api) -> None:
    @made.get("/api/v1/rollouts/{route}", responses=problems(), tags=["rollouts"])
    def rollout(route: RouteName, response: Response) -> dict[str, object]:
        """One route's rollout, its last decision with every gate, and its newest audit events; `ETag` is for orders' If-Match."""
        with api.store.transaction() as tx:
            response.headers["ETag"] = etag_of(rollout_of(tx, route))
            return reports.detail(tx, route)

    @made.get("/api/v1/routes/{route}", responses=problems(), tags=["routes"])
    def one_route(route: RouteName, response: Response) -> dict[str, object]:
        """One route's rollout and flag."""
        with api.store.transaction() as tx:
            found = rollout_of(tx, route)
            response.headers["ETag"] = etag_of(found)
            return reports.summary(found, tx.flags.get(route))

    @made.get("/api/v1/routes/{route}/verdict", responses=problems(), tags=["routes"])
    def verdict(route: RouteName) -> dict[str, object]:
        """One small object for CI and rollout controllers; always 200 when the route exists."""
        with api.store.transaction() as tx:
            return asdict(reports.route_verdict(tx, route, api.clock()))

    @made.get("/api/v1/routes/{route}/evidence", responses=problems(), tags=["routes"])
    def evidence(route: RouteName) -> dict[str, object]:
        """Every gate behind the last decision: value, interval, threshold, number of requests, window, and a sentence."""
        with api.store.transaction() as tx:
            found = rollout_of(tx, route)
            last = reports.last_decision(tx, found)
            attempts = tx.evidence.attempts(route, found.epoch)
        return {"route": route, "epoch": found.epoch, "attempt": found.attempt, "attempts": attempts, "last": last}


def _order(made: APIRouter, api: Api, name: str, command: Command, guarded: bool, said: str) -> None:
    statuses = (*WRITING, 412, 428) if guarded else WRITING

    def order(route: str, order: Order, request: Request, response: Response, if_match: str | None) -> dict[str, object]:
        actor = actor_of(request, order.actor)
        expected = require_match(if_match) if guarded else if_match
        store = api.store if expected is None else expecting_rollout(api.store, route, expected)
        more = {"at_once": order.now} if isinstance(order, Retry) else {}
        done = command(store, route, order.reason, actor, api.clock(), **more)
        api.flags.refresh()
        response.headers["ETag"] = etag_of(done)
        with api.store.transaction() as tx:
            return reports.summary(done, tx.flags.get(route))

    where, words = f"/api/v1/rollouts/{{route}}/{name}", {"tags": ["rollouts"], "name": name, "description": said}

    def ordered(
        route: RouteName, body: Order, request: Request, response: Response, if_match: Annotated[str | None, Header()] = None
    ) -> dict[str, object]:
        return order(route, body, request, response, if_match)

    def retried(
        route: RouteName, body: Retry, request: Request, response: Response, if_match: Annotated[str | None, Header()] = None
    ) -> dict[str, object]:
        if body.now and not caller_of(request).may(Action.APPROVE):
            raise ForbiddenError(
                "the key may not `approve`, which ending a cool-down asks for", where="/now", remedy="Use an approver's key."
            )
        return order(route, body, request, response, if_match)

    made.post(where, responses=problems(*statuses), **words)(retried if name == "retry" else ordered)  # type: ignore[arg-type]
