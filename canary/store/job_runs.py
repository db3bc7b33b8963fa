"""What jobs did, which of them are paused and which a person wants run, with their tables."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Double,
    Identity,
    Index,
    Table,
    Text,
    delete,
    select,
)
from sqlalchemy.dialects.postgresql import insert

from canary.domain.schedule import JobOrder, JobRun, Outcome
from canary.store.packing import scrub
from canary.store.tables import metadata

job_runs = Table(
    "job_runs",
    metadata,
    Column("seq", BigInteger, Identity(), primary_key=True),
    Column("job", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("detail", Text, nullable=False),
    CheckConstraint("outcome in ('done', 'failed')", name="outcome"),
    Index(None, "job", "seq"),
)

job_states = Table("job_states", metadata, Column("job", Text, primary_key=True), Column("paused", Boolean, nullable=False))

# One row a job: a second order before the first was begun is the same wish.
job_orders = Table(
    "job_orders",
    metadata,
    Column("job", Text, primary_key=True),
    Column("actor", Text, nullable=False),
    Column("asked_at", Double, nullable=False),
)


class JobRuns:
    """`JobStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, run: JobRun) -> None:
        """Record one run."""
        values = {name: getattr(run, name) for name in ("job", "started_at", "ended_at", "outcome", "actor", "detail")}
        self._connection.execute(job_runs.insert().values(values))

    def runs(self, job: str, limit: int) -> list[JobRun]:
        """A job's newest runs."""
        chosen = select(job_runs).where(job_runs.c.job == job).order_by(job_runs.c.seq.desc()).limit(limit)
        found = self._connection.execute(chosen)
        return [JobRun(r.job, r.started_at, r.ended_at, Outcome(r.outcome), r.actor, r.detail) for r in found]

    def forget(self, before: float) -> int:
        """Drop runs that ended before a moment; returns how many."""
        return self._connection.execute(delete(job_runs).where(job_runs.c.ended_at < before)).rowcount

    def paused(self) -> frozenset[str]:
        """Names of the jobs that a person paused."""
        return frozenset(self._connection.scalars(select(job_states.c.job).where(job_states.c.paused)))

    def pause(self, job: str, paused: bool) -> None:
        """Pause a job, or let it run again."""
        values = insert(job_states).values(job=job, paused=paused)
        self._connection.execute(values.on_conflict_do_update(index_elements=["job"], set_={"paused": paused}))

    def ask(self, order: JobOrder) -> bool:
        """Keep the order; False where one for that job waits already."""
        values = {"job": order.job, "actor": scrub(order.actor), "asked_at": order.asked_at}
        kept = insert(job_orders).values(values).on_conflict_do_nothing().returning(job_orders.c.job)
        return self._connection.execute(kept).first() is not None

    def orders(self) -> list[JobOrder]:
        """What waits to be run, the oldest first."""
        found = self._connection.execute(select(job_orders).order_by(job_orders.c.asked_at, job_orders.c.job))
        return [JobOrder(r.job, r.actor, r.asked_at) for r in found]

    def settle(self, order: JobOrder) -> None:
        """Forget an order that was carried out; a younger one for the same job stays."""
        one = (job_orders.c.job == order.job) & (job_orders.c.asked_at == order.asked_at)
        self._connection.execute(delete(job_orders).where(one))
