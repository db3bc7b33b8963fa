"""The audit log: who did what on which evidence, and whether the log is whole."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from canary.api.deps import Api, caller_of, page, place_of
from canary.api.schemas import PAGE, Cursor, Kind, Limit, LogName, problems
from canary.flow.tools import audits, reports


def router(api: Api) -> APIRouter:
    """Reading the log, and checking it."""
    made = APIRouter(tags=["audit"])

    def listed(routes: list[str] | None, limit: int, cursor: str | None, kind: str | None) -> dict[str, object]:
        before = place_of(cursor, "audit", int)
        with api.store.transaction() as tx:
            found = tx.audit.page(routes, before=before, limit=limit + 1, kind=kind)
        shown, following = page(found, limit, "audit", lambda event: event["id"])
        return {"events": [_event(event) for event in shown], "next": following}

    @made.get("/api/v1/audit", responses=problems())
    def events(request: Request, limit: Limit = PAGE, cursor: Cursor = None, kind: Kind = None) -> dict[str, object]:
        """Events of every route that the key may see, the newest first."""
        key = caller_of(request).key
        return listed(list(key.routes) if key is not None and key.routes else None, limit, cursor, kind)

    @made.get("/api/v1/audit/{route}", responses=problems())
    def of_route(route: LogName, limit: Limit = PAGE, cursor: Cursor = None, kind: Kind = None) -> dict[str, object]:
        """One route's events, the newest first, each with its digest and that of the event before it."""
        return listed([route], limit, cursor, kind)

    @made.get("/api/v1/audit/{route}/chain", responses=problems())
    def chain(route: LogName) -> dict[str, object]:
        """Whether the route's log is as it was written; `head` is the newest digest, to be kept elsewhere."""
        with api.store.transaction() as tx:
            found = audits.verify_chain(tx, route)
        broken = found.break_
        return {
            "route": route,
            "ok": found.ok,
            "events": found.events,
            "head": found.head,
            "break": None if broken is None else {"event_id": broken.event_id, "why": broken.why},
        }

    return made


def _event(event: dict[str, Any]) -> dict[str, object]:
    return {**event, "body": reports.finite(event["body"]), "at": reports.rfc3339(event["at"])}
