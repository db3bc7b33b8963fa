"""Scheduled shadow runs, one row under each scheduled time, with their table."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import BigInteger, CheckConstraint, Column, Connection, Double, Table, Text, delete, select, update
from sqlalchemy.dialects.postgresql import insert

from canary.domain.shadow_run import ShadowRun
from canary.store.tables import metadata

shadow_runs = Table(
    "shadow_runs",
    metadata,
    Column("route", Text, primary_key=True),
    Column("due_at", Double, primary_key=True),
    Column("opened_at", Double, nullable=False),
    Column("until", Double, nullable=False),
    Column("most", BigInteger),
    Column("taken", BigInteger, nullable=False),
    CheckConstraint("taken >= 0", name="taken"),
)


class ShadowRuns:
    """`ShadowRunStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def open(self, run: ShadowRun) -> bool:
        """Keep a new run; False where its scheduled time has one."""
        kept = insert(shadow_runs).values(asdict(run)).on_conflict_do_nothing().returning(shadow_runs.c.route)
        return self._connection.execute(kept).first() is not None

    def newest(self, route: str) -> ShadowRun | None:
        """The route's run of the newest scheduled time."""
        chosen = select(shadow_runs).where(shadow_runs.c.route == route).order_by(shadow_runs.c.due_at.desc()).limit(1)
        row = self._connection.execute(chosen).mappings().first()
        return None if row is None else ShadowRun(**row)

    def put(self, run: ShadowRun) -> None:
        """Write what a run has taken."""
        one = (shadow_runs.c.route == run.route) & (shadow_runs.c.due_at == run.due_at)
        self._connection.execute(update(shadow_runs).where(one).values(taken=run.taken))

    def forget(self, before: float) -> int:
        """Drop runs that ended before a moment; returns how many."""
        return self._connection.execute(delete(shadow_runs).where(shadow_runs.c.until < before)).rowcount
