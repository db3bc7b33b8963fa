"""The audit log: appended to, read, and by a trigger in the database never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import Connection, and_, insert, select

from canary.store.packing import moment, scrub
from canary.store.tables import audit


class Audit:
    """`AuditStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def append(self, route: str, kind: str, actor: str, body: Mapping[str, object], now: float) -> None:
        """Add one event."""
        row = {"route": route, "kind": kind, "actor": scrub(actor), "body": json.dumps(body), "at": moment(now)}
        self._connection.execute(insert(audit).values(row))

    def list(self, route: str, limit: int = 100, *, kind: str | None = None) -> list[dict[str, object]]:
        """Newest first: {id, route, kind, actor, body, at}; `at` is seconds since the epoch."""
        chosen = audit.c.route == route if kind is None else and_(audit.c.route == route, audit.c.kind == kind)
        rows = self._connection.execute(select(audit).where(chosen).order_by(audit.c.id.desc()).limit(limit)).mappings()
        return [dict(row) | {"body": json.loads(row["body"]), "at": row["at"].timestamp()} for row in rows]
