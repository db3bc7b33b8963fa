"""Five-field cron times in a time zone: when a moment is one, and how far apart they lie. It reads no clock, starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from canary.domain.errors import PolicyError

MINUTE, DAY = 60.0, 86_400.0
FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
LEAP_CYCLE = 8 * 366  # days within which every date that exists comes by
SEEN_DAYS = 800  # over which the longest gap is looked for


@dataclass(frozen=True, slots=True)
class Cron:
    """The times, as sets. Where both days and weekdays are limited, either is enough, as in crontab(5).

    Args:
        weekdays: 0 is Sunday.
        days, weekdays: None where the field is `*`.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int] | None
    months: frozenset[int]
    weekdays: frozenset[int] | None

    def on(self, day: date) -> bool:
        """Whether there are times on this date."""
        if day.month not in self.months:
            return False
        by_day = self.days is not None and day.day in self.days
        by_weekday = self.weekdays is not None and day.isoweekday() % 7 in self.weekdays
        return by_day or by_weekday or (self.days is None and self.weekdays is None)

    def at(self, moment: datetime) -> bool:
        """Whether this local minute is one; of an hour that the clocks repeat, the first."""
        return moment.minute in self.minutes and moment.hour in self.hours and moment.fold == 0 and self.on(moment.date())


@lru_cache(maxsize=256)
def cron_of(text: str, where: str = "cron") -> Cron:
    """Read `minute hour day month weekday`: numbers, `*`, lists, ranges and steps.

    Raises:
        PolicyError: it is not that, or such a time never comes.
    """
    parts = text.split()
    if len(parts) != len(FIELDS):
        raise _wrong(where, f"{text!r} has {len(parts)} fields, not {len(FIELDS)}")
    minutes, hours, days, months, weekdays = (_field(p, *of, where) for p, of in zip(parts, FIELDS, strict=True))
    week = frozenset(day % 7 for day in weekdays)
    made = Cron(minutes, hours, None if parts[2] == "*" else days, months, None if parts[4] == "*" else week)
    start = date(2024, 1, 1)
    if not any(made.on(start + timedelta(days=n)) for n in range(LEAP_CYCLE)):
        raise _wrong(where, f"{text!r} never comes")
    return made


def zone_of(name: str, where: str = "timezone") -> tzinfo:
    """A time zone by its name.

    Raises:
        PolicyError: this machine knows no such zone.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        remedy = "Write UTC, or a name of the time zone database such as Europe/Berlin."
        raise PolicyError(f"no time zone {name!r} is known", where=where, remedy=remedy) from error


def latest(cron: Cron, zone: tzinfo, now: float, *, after: float) -> float | None:
    """The newest scheduled moment in (`after`, `now`], seconds since the epoch; None without one.

    It looks at every minute in between, so `after` must be near. A local time that the clocks skip does not come that day.
    """
    moment = now - now % MINUTE
    while moment > after:
        if cron.at(datetime.fromtimestamp(moment, zone)):
            return moment
        moment -= MINUTE
    return None


def longest_gap(cron: Cron) -> float:
    """Longest time between two scheduled moments, in seconds, as a zone without changes of its clocks would have it."""
    times = sorted(hour * 3600.0 + minute * 60.0 for hour in cron.hours for minute in cron.minutes)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    start = date(2024, 1, 1)
    days = [n for n in range(SEEN_DAYS) if cron.on(start + timedelta(days=n))]
    between = max((later - earlier for earlier, later in pairwise(days)), default=SEEN_DAYS)
    return max(*gaps, between * DAY - times[-1] + times[0], 0.0)


def _field(text: str, name: str, low: int, high: int, where: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            first, last = str(low), str(high)
        numbers = [first, last or (str(high) if step else first), step or "1"]
        if not all(number.isascii() and number.isdigit() and len(number) < 4 for number in numbers):
            raise _wrong(where, f"{name} {part!r} is not a number, a range or a step")
        start, end, every = map(int, numbers)
        if not low <= start <= end <= high or every < 1:
            raise _wrong(where, f"{name} {part!r} is not within {low} to {high}")
        found.update(range(start, end + 1, every))
    return frozenset(found)


def _wrong(where: str, detail: str) -> PolicyError:
    remedy = 'Write five fields, `minute hour day month weekday` with 0 for Sunday, e.g. "0 3 * * *" for 03:00 every day.'
    return PolicyError(detail, where=where, remedy=remedy)
