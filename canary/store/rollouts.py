"""Rollout rows: one per route, written only by whoever read the version before.

What SQL never looks at (cool-down and approval) lies in `details`, as JSON text, whose numbers come back to the bit.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from sqlalchemy import Connection, Row, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from canary.domain.errors import ConflictError
from canary.domain.rollout import Rollout, State
from canary.store.tables import rollouts


class Rollouts:
    """`RolloutStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, route: str, *, lock: bool = False) -> Rollout | None:
        """One route's rollout; `lock` waits for its row lock and keeps it until the transaction ends."""
        statement = select(rollouts).where(rollouts.c.route == route)
        row = self._connection.execute(statement.with_for_update() if lock else statement).first()
        return None if row is None else _rollout(row)

    def list(self) -> list[Rollout]:
        """All rollouts by route."""
        return [_rollout(row) for row in self._connection.execute(select(rollouts).order_by(rollouts.c.route))]

    def put(self, rollout: Rollout) -> None:
        """Insert version 1, or replace the version before.

        Raises:
            ConflictError: the stored version is another one.
        """
        values = _values(rollout)
        written: ReturningInsert[tuple[str]] | ReturningUpdate[tuple[str]]
        if rollout.version == 1:
            written = insert(rollouts).values(values).on_conflict_do_nothing().returning(rollouts.c.route)
        else:
            before = (rollouts.c.route == rollout.route) & (rollouts.c.version == rollout.version - 1)
            written = update(rollouts).where(before).values(values).returning(rollouts.c.route)
        if self._connection.execute(written).first() is None:
            raise ConflictError(
                f"version {rollout.version} does not follow the stored one",
                where=f"rollouts/{rollout.route}",
                remedy="Read the rollout again and retry.",
            )


def _values(rollout: Rollout) -> dict[str, object]:
    values = asdict(rollout) | {"state": rollout.state.value}
    details = {name: values.pop(name) for name in list(values) if name not in rollouts.c}
    return values | {"details": json.dumps(details, sort_keys=True)}


def _rollout(row: Row[tuple[object, ...]]) -> Rollout:
    fields = dict(row._mapping)
    details = json.loads(fields.pop("details"))
    return Rollout(**fields | details | {"state": State(fields["state"])})
