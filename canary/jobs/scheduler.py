"""APScheduler behind a leader: fixed jobs, kept in memory and rebuilt at every start, run only while this process leads.

A run that was missed is run once; the same job never runs twice at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from canary.domain.errors import CanaryError
from canary.domain.schedule import JOBS, Job, JobOrder
from canary.flow.leading import Leadership
from canary.flow.ports import Observer, Store
from canary.flow.tools.jobs import Runner, Work

MISFIRE_SECONDS = 30
MISFIRE_CRON_SECONDS = 3_600
ORDERS = "orders"  # not a job of `domain.schedule`: it looks for what people ask for
ORDERS_SECONDS = 1.0


class Scheduler:
    """Runs jobs while this process leads.

    Args:
        work: what each job does; a job without work is left to another process.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        leadership: Leadership,
        work: Mapping[str, Work],
        observer: Observer,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._leadership, self._observer = leadership, observer
        self._runner = Runner(store, work, clock, leadership.fence)
        self._failing: set[str] = set()
        logging.getLogger("apscheduler").setLevel(logging.ERROR)  # it warns at every run that is still in hand
        # One thread a job: a drill that takes hours, or a receiver that does not answer, holds up nothing else.
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(len(work) + 1)},
            job_defaults={"coalesce": True, "max_instances": 1},
        )
        for name in work:
            job = JOBS[name]
            grace = MISFIRE_SECONDS if job.every else MISFIRE_CRON_SECONDS
            self._scheduler.add_job(
                self.fire, trigger_of(job), args=[name], id=name, misfire_grace_time=grace, replace_existing=True
            )

        self._scheduler.add_job(
            self.obey, IntervalTrigger(seconds=ORDERS_SECONDS, timezone=UTC), id=ORDERS, misfire_grace_time=MISFIRE_SECONDS
        )

    def start(self) -> None:
        self._leadership.start()
        self._scheduler.start()

    def stop(self) -> None:
        """Let the runs in hand end, then let somebody else lead."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)
        self._leadership.stop()

    def fire(self, name: str) -> None:
        """One run of a job if this process leads; a failure is noted, once per outage, and tried again when it is due."""
        if not self._leadership.leads:
            return
        try:
            order = next((order for order in self._runner.orders() if order.job == name), None)
            run = self._runner.run(name, order=order)
        except CanaryError as error:
            if name not in self._failing:
                self._observer.note("job_failed", job=name, code=error.code, error=str(error))
            self._failing.add(name)
            return
        if run is not None and run.outcome == "failed" and name not in self._failing:
            self._observer.note("job_failed", job=name, error=run.detail)
        if run is None or run.outcome == "done":
            self._failing.discard(name)
        else:
            self._failing.add(name)

    def obey(self) -> None:
        """Run what people have asked for, as if it were due now; a job that runs already is asked for again at the next look."""
        if not self._leadership.leads:
            return
        orders: list[JobOrder] = []
        with suppress(CanaryError):  # a store that is away is noted by every other job
            orders = self._runner.orders()
        for order in orders:
            with suppress(CanaryError):
                if self._scheduler.get_job(order.job) is None:
                    self._runner.run(order.job, order=order)
                else:
                    self._scheduler.modify_job(order.job, next_run_time=datetime.now(UTC))


def trigger_of(job: Job) -> BaseTrigger:
    """When a job is due, as APScheduler has it; cron fields are UTC."""
    return CronTrigger.from_crontab(job.cron, UTC) if job.cron else IntervalTrigger(seconds=job.every, timezone=UTC)
