"""The jobs that a scheduler runs, as data: what each is for and when it is due. Who runs them, and how, is not here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from canary.domain.errors import NotFoundError


class Outcome(StrEnum):
    """How a job run ended."""

    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Args:
        every: seconds between runs; 0 where `cron` says when.
        cron: five fields, UTC; "" where `every` does.
        quiet: runs too often for a row each: failures are recorded, and a good run once a minute.
    """

    name: str
    purpose: str
    every: float = 0.0
    cron: str = ""
    quiet: bool = False

    @property
    def when(self) -> str:
        """The schedule, for people."""
        return f"every {self.every:g} s" if self.every else f"{self.cron} UTC"


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run as recorded.

    Args:
        started_at, ended_at: seconds since the epoch.
        actor: `scheduler` or a person.
        detail: what it did or what went wrong; never a prompt.
    """

    job: str
    started_at: float
    ended_at: float
    outcome: Outcome
    actor: str
    detail: str


@dataclass(frozen=True, slots=True)
class JobOrder:
    """A run that a person asked for and that nobody has carried out yet.

    Args:
        asked_at: seconds since the epoch.
    """

    job: str
    actor: str
    asked_at: float


JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        Job("assessment", "fold, decide and publish every route", every=1.0, quiet=True),
        Job("delivery", "send what is due to webhooks", every=1.0, quiet=True),
        Job("shadow_runs", "open the shadow runs that a policy's schedule asks for", every=10.0, quiet=True),
        Job("partitions", "make the coming week's daily partitions", every=3_600.0),
        Job("key_expiry", "end keys whose time is over, and forget old answers", every=3_600.0),
        Job("retention", "drop prompt content and numbers past their lifetimes", cron="15 3 * * *"),
        Job("drills", "run the drills that a policy asks for and that are about to grow stale", cron="45 2 * * *"),
        Job("kill_drill", "flip the drill's flag and record how fast clients held it", cron="30 9 * * *"),
    )
}


def job_named(name: str) -> Job:
    """A job by its name.

    Raises:
        NotFoundError: there is none; names those there are.
    """
    if name not in JOBS:
        raise NotFoundError(f"there is no job {name!r}", where="jobs", remedy=f"There are: {', '.join(JOBS)}.")
    return JOBS[name]
