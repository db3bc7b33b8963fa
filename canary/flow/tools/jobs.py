"""Running jobs: what each does, one run with its record, and pausing; when a job is due is the scheduler's business."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from canary.domain.errors import CanaryError, NotFoundError
from canary.domain.schedule import JOBS, Job, JobOrder, JobRun, Outcome, job_named
from canary.flow.attempt import pinned_policy
from canary.flow.drills import AUDIT_KIND, judge, required
from canary.flow.kills import said
from canary.flow.ports import Store, Transaction
from canary.flow.tools import pins
from canary.flow.tools.keys import AUDIT_ROUTE

QUIET_SECONDS = 60.0
MOST_DETAIL = 500
ANSWER_SECONDS = 86_400.0  # how long answers by Idempotency-Key are kept
EVENTS = 100  # drills of a route that are looked through
EARLY = 0.8  # of a drill's greatest age, from which on it is run again

Work = Callable[[], str]  # returns what it did, in a sentence
Fence = Callable[[Transaction], None]


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job for a listing.

    Args:
        last: its newest recorded run.
        order: what a person asked for and no leader has carried out yet.
    """

    job: Job
    paused: bool
    last: JobRun | None
    order: JobOrder | None = None


Check = Callable[[JobReport], None]


def unchecked(found: JobReport) -> None:
    """The check of a caller that expects nothing."""


class Runner:
    """Runs jobs and records each run.

    Args:
        work: what each job does, by its name; a job without work does not run in this process.
        clock: seconds since the epoch.
        fence: called in the transaction that records a run.
    """

    def __init__(self, store: Store, work: Mapping[str, Work], clock: Callable[[], float], fence: Fence) -> None:
        self._store, self._clock, self._fence = store, clock, fence
        self.work = dict(work)
        self._noted: dict[str, float] = {}

    def orders(self) -> list[JobOrder]:
        """Runs that people have asked for, of jobs that nothing does here too."""
        with self._store.transaction() as tx:
            return tx.jobs.orders()

    def run(self, name: str, *, actor: str = "scheduler", asked: bool = False, order: JobOrder | None = None) -> JobRun | None:
        """Run a job now; None where it is paused.

        Args:
            asked: a person wants it, paused or not.
            order: how the person asked for it; it is forgotten where the run is recorded, so that a leader that dies before
                leaves it to the next one.

        Raises:
            NotFoundError: there is no such job. One that nothing does here is a run that failed.
            UnreachableError: the store does not answer.
            ConflictError: the fence refused the record.
        """
        job, asked = job_named(name), asked or order is not None
        actor = actor if order is None else order.actor
        with self._store.transaction() as tx:
            if not asked and name in tx.jobs.paused():
                return None
        started = self._clock()
        try:
            outcome, detail = Outcome.DONE, self._work_of(name)()
        except CanaryError as error:
            outcome, detail = Outcome.FAILED, str(error)
        except Exception as error:  # the text of a foreign error may hold a row, so only its type is told
            outcome, detail = Outcome.FAILED, type(error).__name__
        run = JobRun(name, started, self._clock(), outcome, actor, detail[:MOST_DETAIL])
        quiet = job.quiet and not asked and self._clock() - self._noted.get(f"{name}/{outcome}", -QUIET_SECONDS) < QUIET_SECONDS
        if not quiet:
            self._noted[f"{name}/{outcome}"] = self._clock()
            with self._store.transaction() as tx:
                if not asked or order is not None:
                    self._fence(tx)
                tx.jobs.add(run)
                if order is not None:
                    tx.jobs.settle(order)
                tx.commit()
        return run

    def _work_of(self, name: str) -> Work:
        if name not in self.work:
            raise NotFoundError("nothing does it in the process that leads", where=f"jobs/{name}", remedy="See scheduler.md.")
        return self.work[name]


def reports(store: Store) -> list[JobReport]:
    """Every job, in a fixed order."""
    with store.transaction() as tx:
        return [_report(tx, job) for job in JOBS.values()]


def report(tx: Transaction, name: str) -> JobReport:
    """One job.

    Raises:
        NotFoundError: there is no such job.
    """
    return _report(tx, job_named(name))


def _report(tx: Transaction, job: Job) -> JobReport:
    order = next((order for order in tx.jobs.orders() if order.job == job.name), None)
    return JobReport(job, job.name in tx.jobs.paused(), next(iter(tx.jobs.runs(job.name, 1)), None), order)


def ask(store: Store, name: str, actor: str, now: float, *, check: Check = unchecked) -> JobOrder:
    """Ask whoever leads to run a job, paused or not, with an audit event; while it is asked for, a second time changes nothing.

    Args:
        check: raises if the job is not as the caller expects.

    Raises:
        NotFoundError: there is no such job.
        RequestError: the actor is empty or too long.
    """
    order = JobOrder(job_named(name).name, said("actor", actor), now)
    with store.transaction() as tx:
        check(report(tx, name))
        if not tx.jobs.ask(order):
            return next((waiting for waiting in tx.jobs.orders() if waiting.job == name), order)
        body = {"sentence": f"Job {name} is to run now.", "job": name}
        tx.audit.append(AUDIT_ROUTE, "job_asked", order.actor, body, now)
        tx.commit()
    return order


def pause(store: Store, name: str, paused: bool, actor: str, now: float, *, check: Check = unchecked) -> None:
    """Pause a job, or let it run again, with an audit event; a second time changes nothing.

    Args:
        check: raises if the job is not as the caller expects.

    Raises:
        NotFoundError: there is no such job.
        RequestError: the actor is empty or too long.
    """
    job_named(name)
    actor = said("actor", actor)
    with store.transaction() as tx:
        check(report(tx, name))
        if (name in tx.jobs.paused()) != paused:
            tx.jobs.pause(name, paused)
            body = {"sentence": f"Job {name} {'paused' if paused else 'runs again'}.", "job": name}
            tx.audit.append(AUDIT_ROUTE, "job_paused" if paused else "job_resumed", actor, body, now)
            tx.commit()


def expire_keys(store: Store, now: float) -> str:
    """End keys and pins whose time is over, each with one audit event, and forget old answers."""
    with store.transaction() as tx:
        over = [k for k in tx.keys.list() if k.revoked_at is None and k.expires_at is not None and k.expires_at <= now]
        for key in over:
            tx.keys.put(replace(key, revoked_at=key.expires_at))
            body = {"sentence": f"Key {key.key_id} of {key.owner} expired.", "key_id": key.key_id}
            tx.audit.append(AUDIT_ROUTE, "key_expired", "scheduler", body, now)
        ended = pins.expire(tx, now)
        forgotten = tx.answers.expire(now - ANSWER_SECONDS)
        tx.commit()
    return f"{len(over)} keys and {ended} pins expired, {forgotten} answers forgotten"


def drills_due(store: Store, now: float) -> list[tuple[str, tuple[str, ...]]]:
    """Routes whose policy asks for drills, with the faults that no drill of this epoch covers for much longer."""
    due = []
    with store.transaction() as tx:
        for rollout in tx.rollouts.list():
            policy = pinned_policy(tx, rollout)
            names = required(policy)
            if not names or not rollout.wants_shadow or not rollout.epoch or policy.subject.fault is not None:
                continue
            events = tx.audit.list(rollout.route, EVENTS, kind=AUDIT_KIND)
            found = judge(names, events, rollout.epoch, EARLY * policy.drills.max_age_seconds, now).details["missing"]
            missing = tuple(str(name) for name in found) if isinstance(found, list | tuple) else ()
            if missing:
                due.append((rollout.route, missing))
    return due
