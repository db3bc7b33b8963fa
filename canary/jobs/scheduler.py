"""APScheduler behind a leader: fixed jobs, kept in memory and rebuilt at every start, run only while this process leads.

A run that was missed is run once; the same job never runs twice at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from canary.domain.errors import CanaryError
from canary.domain.schedule import JOBS, Job
from canary.flow.leading import Leadership
from canary.flow.ports import Observer, Store
from canary.flow.tools.jobs import Runner, Work

MISFIRE_SECONDS = 30
MISFIRE_CRON_SECONDS = 3_600


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
            executors={"default": ThreadPoolExecutor(max(1, len(work)))},
            job_defaults={"coalesce": True, "max_instances": 1},
        )
        for name in work:
            job = JOBS[name]
            grace = MISFIRE_SECONDS if job.every else MISFIRE_CRON_SECONDS
            self._scheduler.add_job(
                self.fire, trigger_of(job), args=[name], id=name, misfire_grace_time=grace, replace_existing=True
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
            run = self._runner.run(name)
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


def trigger_of(job: Job) -> BaseTrigger:
    """When a job is due, as APScheduler has it; cron fields are UTC."""
    return CronTrigger.from_crontab(job.cron, UTC) if job.cron else IntervalTrigger(seconds=job.every, timezone=UTC)
