"""Folded state and frozen calibration of each attempt, as JSON text that comes back to the bit.

What they mean is the business of `stats`; here a calibration is written once and never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from sqlalchemy import Connection, Table, and_, select
from sqlalchemy.dialects.postgresql import insert

from canary.domain.errors import ConflictError
from canary.store.tables import calibrations, evidence


class EvidenceRows:
    """`EvidenceStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, route: str, epoch: str, attempt: int) -> dict[str, object] | None:
        """The folded state, None before the first fold."""
        return self._read(evidence, "state", route, epoch, attempt)

    def put(self, route: str, epoch: str, attempt: int, state: Mapping[str, object]) -> None:
        """Write the folded state over the one before."""
        statement = insert(evidence).values(route=route, epoch=epoch, attempt=attempt, state=json.dumps(state))
        self._connection.execute(
            statement.on_conflict_do_update(constraint=evidence.primary_key, set_={"state": statement.excluded.state})
        )

    def attempts(self, route: str, epoch: str) -> list[int]:
        """The epoch's attempts that have a folded state, rising."""
        c = evidence.c
        statement = select(c.attempt).where(and_(c.route == route, c.epoch == epoch)).order_by(c.attempt)
        return list(self._connection.scalars(statement))

    def get_calibration(self, route: str, epoch: str, attempt: int) -> dict[str, object] | None:
        """The attempt's calibration, None while it calibrates."""
        return self._read(calibrations, "record", route, epoch, attempt)

    def put_calibration(self, route: str, epoch: str, attempt: int, record: Mapping[str, object]) -> None:
        """Freeze the attempt's calibration; the same one again is a no-op.

        Raises:
            ConflictError: another one is frozen already.
        """
        block = json.dumps(record, sort_keys=True)
        statement = insert(calibrations).values(route=route, epoch=epoch, attempt=attempt, record=block)
        if self._connection.execute(statement.on_conflict_do_nothing().returning(calibrations.c.route)).first() is not None:
            return
        frozen = self._read(calibrations, "record", route, epoch, attempt)
        if json.dumps(frozen, sort_keys=True) != block:
            raise ConflictError(
                f"attempt {attempt} is already calibrated, with other values",
                where=f"calibrations/{route}",
                remedy="Read the frozen record and use that.",
            )

    def _read(self, table: Table, column: str, route: str, epoch: str, attempt: int) -> dict[str, object] | None:
        c = table.c
        statement = select(c[column]).where(and_(c.route == route, c.epoch == epoch, c.attempt == attempt))
        block = self._connection.scalars(statement).first()
        return None if block is None else cast("dict[str, object]", json.loads(block))
