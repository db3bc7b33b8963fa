"""Pinned units of a route: which there are, pinning one to a variant, and letting its bucket decide again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from canary.api.deps import Api, actor_of, matches, page, place_of, require_match, tag
from canary.api.schemas import PAGE, WRITING, Cursor, Limit, Order, PinOrder, RouteName, UnitName, problems
from canary.domain.errors import PreconditionError, PreconditionRequiredError
from canary.domain.pins import Pin
from canary.flow.attempt import rollout_of
from canary.flow.tools import pins
from canary.flow.tools.pins import Check, described

BASE = "/api/v1/routes/{route}/pins"


def router(api: Api) -> APIRouter:
    """Reading pins, and ordering."""
    made = APIRouter(tags=["pins"])
    _reading(made, api)
    _writing(made, api)
    return made


def _reading(made: APIRouter, api: Api) -> None:
    @made.get(BASE, responses=problems())
    def listed(route: RouteName, limit: Limit = PAGE, cursor: Cursor = None) -> dict[str, object]:
        """The route's pins that have not expired, by unit; `in_force` says whether the flag carries one now."""
        after = place_of(cursor, "pins", str)
        with api.store.transaction() as tx:
            rollout = rollout_of(tx, route)
            found = [p for p in pins.listed(tx, route, api.clock()) if after is None or p.unit > after]
        shown, following = page(found, limit, "pins", lambda pin: pin.unit)
        return {"route": route, "pins": [described(pin, rollout, api.clock()) for pin in shown], "next": following}

    @made.get(f"{BASE}/{{unit}}", responses=problems())
    def one(route: RouteName, unit: UnitName, response: Response) -> dict[str, object]:
        """One unit's pin; `ETag` is for If-Match."""
        with api.store.transaction() as tx:
            rollout = rollout_of(tx, route)
            found = pins.one(tx, route, unit, api.clock())
        response.headers["ETag"] = tag_of(found)
        return described(found, rollout, api.clock())


def _writing(made: APIRouter, api: Api) -> None:
    def shown(found: Pin, response: Response) -> dict[str, object]:
        response.headers["ETag"] = tag_of(found)
        with api.store.transaction() as tx:
            return described(found, rollout_of(tx, found.route), api.clock())

    @made.put(f"{BASE}/{{unit}}", responses=problems(*WRITING, 412, 428))
    def put(
        route: RouteName,
        unit: UnitName,
        order: PinOrder,
        request: Request,
        response: Response,
        if_match: Annotated[str | None, Header()] = None,
        if_none_match: Annotated[str | None, Header()] = None,
    ) -> dict[str, object]:
        """Give a unit a variant whatever its bucket is: the baseline in every state, the candidate in a canary stage or at full.

        `If-Match` names the pin that it replaces; `If-None-Match: *` says that the unit has none yet.
        """
        actor, check = actor_of(request, order.actor), _expecting(if_match, if_none_match)
        given = (unit, order.variant, order.reason, actor, api.clock())
        made_pin = pins.pin(api.store, route, *given, seconds=order.expires_seconds, check=check)
        api.flags.refresh()
        return shown(made_pin, response)

    @made.delete(f"{BASE}/{{unit}}", responses=problems(*WRITING, 412, 428))
    def delete(
        route: RouteName, unit: UnitName, order: Order, request: Request, if_match: Annotated[str | None, Header()] = None
    ) -> dict[str, object]:
        """Let the unit's bucket decide again; `If-Match` names the pin that was seen."""
        actor, check = actor_of(request, order.actor), _expecting(require_match(if_match), None)
        old = pins.unpin(api.store, route, unit, order.reason, actor, api.clock(), check=check)
        api.flags.refresh()
        return {"route": route, "unit": old.unit, "pinned": False}


def tag_of(pin: Pin) -> str:
    """A strong tag over the whole pin."""
    return tag([pin.route, pin.unit, pin.variant, pin.epoch, pin.actor, pin.pinned_at, pin.expires_at])


def _expecting(if_match: str | None, if_none_match: str | None) -> Check:
    if if_match is None and (if_none_match is None or if_none_match.strip() != "*"):
        raise PreconditionRequiredError(
            "the request does not say which pin it replaces",
            where="If-Match",
            remedy="Send the ETag of the pin that you saw, or `If-None-Match: *` for a unit without one.",
        )

    def check(found: Pin | None) -> None:
        current = None if found is None else tag_of(found)
        if (if_match is None and current is not None) or (if_match is not None and not matches(if_match, current)):
            raise PreconditionError(
                "the unit's pin is not the expected one", where="If-Match", remedy="Read it again, and decide again."
            )

    return check
