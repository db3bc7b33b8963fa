"""What the scheduler needs to keep: notices on their way, job runs, and who leads; see `flow.ports`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from canary.domain.notices import Notice, NoticeState
from canary.domain.schedule import JobOrder, JobRun
from canary.domain.shadow_run import ShadowRun


class NoticeStore(Protocol):
    def add(self, given: Sequence[Notice]) -> None:
        """Keep new notices; one whose id is known changes nothing."""

    def claim(self, now: float, limit: int, lease_seconds: float) -> list[Notice]:
        """Pending ones that are due, oldest first; nobody else gets them before the lease is over."""

    def put(self, notice: Notice) -> None:
        """Write how a try ended, unless the notice was sent meanwhile."""

    def list(self, limit: int, state: NoticeState | None = None) -> list[Notice]:
        """The newest, of one state or of all."""

    def forget(self, before: float) -> int:
        """Drop what was sent or given up before a moment; returns how many."""


class JobStore(Protocol):
    def add(self, run: JobRun) -> None:
        """Record one run."""

    def runs(self, job: str, limit: int) -> list[JobRun]:
        """A job's newest runs."""

    def forget(self, before: float) -> int:
        """Drop runs that ended before a moment; returns how many."""

    def paused(self) -> frozenset[str]:
        """Names of the jobs that a person paused."""

    def pause(self, job: str, paused: bool) -> None:
        """Pause a job, or let it run again."""

    def ask(self, order: JobOrder) -> bool:
        """Keep the order; False where one for that job waits already."""

    def orders(self) -> list[JobOrder]:
        """What waits to be run, the oldest first."""

    def settle(self, order: JobOrder) -> None:
        """Forget an order that was carried out; a younger one for the same job stays."""


class ShadowRunStore(Protocol):
    def open(self, run: ShadowRun) -> bool:
        """Keep a new run; False where its scheduled time has one."""

    def newest(self, route: str) -> ShadowRun | None:
        """The route's run of the newest scheduled time."""

    def put(self, run: ShadowRun) -> None:
        """Write what a run has taken."""

    def forget(self, before: float) -> int:
        """Drop runs that ended before a moment; returns how many."""


class LeaderStore(Protocol):
    def take(self, name: str, holder: str, until: float) -> int:
        """Begin a term: a token above every earlier one. Waits for writes of the term before that are under way."""

    def renew(self, name: str, token: int, until: float) -> bool:
        """Extend a term; False where it is over."""

    def until(self, name: str) -> float:
        """When the present term's lease ends, seconds since the epoch; -inf before the first."""

    def leads(self, name: str, token: int) -> bool:
        """Whether the term goes on; if so no other can begin before this transaction ends."""
