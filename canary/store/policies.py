"""Policies as they were applied: every text that a rollout may have pinned stays readable by its hash."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from canary.store.packing import moment
from canary.store.tables import policies


class Policies:
    """`PolicyStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, route: str, content_hash: str, text: str, now: float) -> None:
        """Make the policy the route's newest; the newest again is a no-op."""
        if self.current(route) == (content_hash, text):
            return
        row = {"route": route, "content_hash": content_hash, "text": text, "applied_at": moment(now)}
        self._connection.execute(insert(policies).values(row))

    def current(self, route: str) -> tuple[str, str] | None:
        """(content hash, YAML text) of the newest."""
        statement = select(policies.c.content_hash, policies.c.text).where(policies.c.route == route)
        row = self._connection.execute(statement.order_by(policies.c.id.desc()).limit(1)).first()
        return None if row is None else (row.content_hash, row.text)

    def get(self, content_hash: str) -> str | None:
        """YAML text by content hash, current or not."""
        statement = select(policies.c.text).where(policies.c.content_hash == content_hash)
        return self._connection.scalars(statement.order_by(policies.c.id.desc()).limit(1)).first()

    def routes(self) -> list[str]:
        """Every route that has a policy, sorted."""
        return sorted(self._connection.scalars(select(policies.c.route).distinct()))
