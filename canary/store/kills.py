"""Kill orders as they were settled: added once, in the order of commits, and never changed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, select, update
from sqlalchemy.dialects.postgresql import insert

from canary.domain.kills import Act, KillOrder
from canary.store.flag_tables import flag_versions, kill_orders


class KillOrders:
    """`KillStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, order: KillOrder) -> bool:
        """Add one order unless it is there; the lock on the version makes writers queue, so none commits out of turn."""
        self._connection.execute(select(flag_versions).with_for_update())
        values = {**order.to_dict(), "undoes": json.dumps(order.undoes)}
        statement = insert(kill_orders).values(values).on_conflict_do_nothing().returning(kill_orders.c.seq)
        new = self._connection.execute(statement).first() is not None
        if new:
            self._connection.execute(update(flag_versions).values(version=flag_versions.c.version + 1))
        return new

    def after(self, cursor: int) -> list[tuple[int, KillOrder]]:
        """Orders beyond a place, in the order of commits, each with its own place."""
        found = self._connection.execute(
            select(kill_orders).where(kill_orders.c.seq > cursor).order_by(kill_orders.c.seq)
        ).mappings()
        return [(row["seq"], _order(row)) for row in found]

    def about(self, scopes: Sequence[str]) -> list[KillOrder]:
        """Every order of these scopes."""
        chosen = select(kill_orders).where(kill_orders.c.scope.in_(scopes)).order_by(kill_orders.c.seq)
        return [_order(row) for row in self._connection.execute(chosen).mappings()]


def _order(row: RowMapping) -> KillOrder:
    fields = {name: value for name, value in row.items() if name != "seq"}
    return KillOrder(**{**fields, "act": Act(row["act"]), "undoes": tuple(json.loads(row["undoes"]))})
