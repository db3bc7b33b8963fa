"""Scheduled shadow runs: windows outside of which no new prompt of a route is run. What is due follows from the clock alone."""

from __future__ import annotations

from dataclasses import dataclass

from canary.domain.cron import cron_of, latest, longest_gap, zone_of

LATE_SECONDS = 3_600.0  # a scheduled time that nobody was there to see is made up for so long


@dataclass(frozen=True, slots=True)
class ShadowSchedule:
    """When a route's mirrored prompts are run; without one they are run as they come.

    Args:
        cron: five fields, `minute hour day month weekday` (0 is Sunday), in `timezone`; each such time opens a run.
        timezone: `UTC` or a name of the time zone database.
        max_requests: most new requests that one run takes; without it as many as its time allows.
        max_minutes: how long a run takes new requests.
    """

    cron: str
    timezone: str = "UTC"
    max_requests: int | None = None
    max_minutes: float = 60.0

    @property
    def longest_gap(self) -> float:
        """Longest time between the starts of two runs, seconds."""
        return longest_gap(cron_of(self.cron))

    def check(self) -> None:
        """Refuse what is no schedule.

        Raises:
            PolicyError: names the field.
        """
        zone_of(self.timezone, "shadow.schedule.timezone")
        cron_of(self.cron, "shadow.schedule.cron")


@dataclass(frozen=True, slots=True)
class ShadowRun:
    """One run, as it was opened.

    Args:
        due_at: the scheduled time, which names it; seconds since the epoch, as all times here.
        opened_at: when a scheduler opened it.
        until: from then on it takes no new request.
        most: new requests that it may take; None without a limit.
        taken: those that it took.
    """

    route: str
    due_at: float
    opened_at: float
    until: float
    most: int | None = None
    taken: int = 0

    def left(self, now: float) -> int | None:
        """New requests that it may still take now; None where nothing limits them."""
        if not self.opened_at <= now < self.until:
            return 0
        return None if self.most is None else max(0, self.most - self.taken)


def due(route: str, schedule: ShadowSchedule, newest: ShadowRun | None, now: float) -> ShadowRun | None:
    """The run to open now; None where the newest scheduled time has one, or passed long ago.

    Args:
        newest: the route's newest run.
    """
    after = now - LATE_SECONDS if newest is None else max(now - LATE_SECONDS, newest.due_at)
    at = latest(cron_of(schedule.cron), zone_of(schedule.timezone), now, after=after)
    return None if at is None else ShadowRun(route, at, now, now + 60.0 * schedule.max_minutes, schedule.max_requests)
