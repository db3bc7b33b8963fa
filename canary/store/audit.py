"""The audit log: appended to, read, and by a trigger in the database never changed; each route's events are a hash chain."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, func, insert, select

from canary.domain import chain
from canary.store.packing import moment, scrub
from canary.store.tables import audit

CHAIN_LOCK = 0x43414E59
LINKS = ("previous", "digest")


class Audit:
    """`AuditStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def append(self, route: str, kind: str, actor: str, body: Mapping[str, object], now: float) -> None:
        """Add one event after the route's newest; who appends to a route waits for whoever does so already."""
        # The lock comes first, so that the newest event is read after its writer has committed.
        self._connection.execute(select(func.pg_advisory_xact_lock(CHAIN_LOCK, func.hashtext(route))))
        newest = select(audit.c.digest).where(audit.c.route == route).order_by(audit.c.id.desc()).limit(1)
        previous = self._connection.scalars(newest).first() or chain.START
        said, at = scrub(actor), moment(now)
        digest = chain.link(previous, route, kind, said, body, at.timestamp())
        row = {"route": route, "kind": kind, "actor": said, "body": json.dumps(body), "at": at}
        self._connection.execute(insert(audit).values({**row, "previous": previous, "digest": digest}))

    def page(
        self, routes: Sequence[str] | None, *, before: int | None, limit: int, kind: str | None = None
    ) -> list[dict[str, object]]:
        """As `list`, with its links, of some routes or of all (None), below an id."""
        statement = select(audit).order_by(audit.c.id.desc()).limit(limit)
        if routes is not None:
            statement = statement.where(audit.c.route.in_([scrub(route) for route in routes]))
        if before is not None:
            statement = statement.where(audit.c.id < before)
        if kind is not None:
            statement = statement.where(audit.c.kind == scrub(kind))
        return [_event(row) for row in self._connection.execute(statement).mappings()]

    def chain(self, route: str, *, after: int, limit: int) -> list[dict[str, object]]:
        """One route's events beyond an id, oldest first, with their links."""
        statement = select(audit).where(audit.c.route == route, audit.c.id > after).order_by(audit.c.id).limit(limit)
        return [_event(row) for row in self._connection.execute(statement).mappings()]

    def routes(self) -> list[str]:
        """Every route that has an event, sorted."""
        return sorted(self._connection.scalars(select(audit.c.route).distinct()))

    def list(self, route: str, limit: int = 100, *, kind: str | None = None) -> list[dict[str, object]]:
        """Newest first: {id, route, kind, actor, body, at}; `at` is seconds since the epoch."""
        chosen = audit.c.route == route if kind is None else and_(audit.c.route == route, audit.c.kind == kind)
        rows = self._connection.execute(select(audit).where(chosen).order_by(audit.c.id.desc()).limit(limit)).mappings()
        return [{name: value for name, value in _event(row).items() if name not in LINKS} for row in rows]


def _event(row: Any) -> dict[str, object]:
    return dict(row) | {"body": json.loads(row["body"]), "at": row["at"].timestamp()}
