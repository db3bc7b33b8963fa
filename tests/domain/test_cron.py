"""Cron times: which moments they are, in which zone, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from canary.domain.cron import cron_of, latest, longest_gap, zone_of
from canary.domain.errors import PolicyError
from canary.domain.shadow_run import LATE_SECONDS, ShadowRun, ShadowSchedule, due

BERLIN = zone_of("Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def times(cron: str, start: str, hours: int, zone: str = "UTC") -> list[str]:
    """All scheduled moments of some hours from `start` on, UTC."""
    found, first = [], at(start)
    for minute in range(60 * hours):
        now = first + 60.0 * minute
        if latest(cron_of(cron), zone_of(zone), now, after=now - 60.0) is not None:
            found.append(datetime.fromtimestamp(now, UTC).strftime("%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("cron", "found"),
    [
        ("0 3 * * *", ["01 03:00", "02 03:00"]),
        ("*/30 22-23 1-31/2 * *", ["01 22:00", "01 22:30", "01 23:00", "01 23:30"]),
        ("15,45 6 1 * *", ["01 06:15", "01 06:45"]),
        ("0 12 2 * 1", ["01 12:00", "02 12:00"]),  # the second, or a Monday: 1 January 2024 is one
        ("0 12 * * 2", ["02 12:00"]),
        ("0 0 * * 7", []),
        ("5/20 0 1 1 *", ["01 00:05", "01 00:25", "01 00:45"]),
    ],
)
def test_moments(cron: str, found: list[str]) -> None:
    assert times(cron, "2024-01-01", 48) == found


def test_a_zone_has_its_own_hours_and_an_hour_that_comes_twice_counts_once() -> None:
    assert times("0 3 * * *", "2024-01-01", 24, "Europe/Berlin") == ["01 02:00"]
    assert times("0 3 * * *", "2024-07-01", 24, "Europe/Berlin") == ["01 01:00"]
    assert times("30 2 * * *", "2024-10-27", 24, "Europe/Berlin") == ["27 00:30"], "the clocks go back at 03:00"
    assert times("30 2 * * *", "2024-03-31", 24, "Europe/Berlin") == [], "that half hour is skipped"


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("0 3 * *", "4 fields"),
        ("60 3 * * *", "minute '60' is not within 0 to 59"),
        ("0 3 * * mon", "not a number"),
        ("0 3-1 * * *", "not within"),
        ("*/0 3 * * *", "not within"),
        ("0 0 31 2 *", "never comes"),
        ("-1 3 * * *", "not a number"),
        ("0 3 * * 1,", "not a number"),
    ],
)
def test_what_is_no_time_is_refused(cron: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said) as caught:
        ShadowSchedule(cron).check()
    assert caught.value.where == "shadow.schedule.cron"


def test_an_unknown_zone_is_refused() -> None:
    for zone in ("Mars/Olympus", "", "../etc/passwd"):
        with pytest.raises(PolicyError) as caught:
            ShadowSchedule("0 3 * * *", zone).check()
        assert caught.value.where == "shadow.schedule.timezone"


@pytest.mark.parametrize(
    ("cron", "hours"), [("0 3 * * *", 24), ("0 3,9 * * *", 18), ("0 3 * * 1", 168), ("0 3 29 2 *", 19_200), ("* * * * *", 1 / 60)]
)
def test_the_longest_gap(cron: str, hours: float) -> None:
    assert longest_gap(cron_of(cron)) == hours * 3600


def test_a_run_is_due_once_and_made_up_for_an_hour() -> None:
    nightly, three = ShadowSchedule("0 3 * * *", max_requests=5, max_minutes=90), at("2024-01-02 03:00")
    assert due("math", nightly, None, three - 1) is None
    run = due("math", nightly, None, three + 30)
    assert run == ShadowRun("math", three, three + 30, three + 30 + 5400, 5)
    assert due("math", nightly, run, three + 60) is None
    assert due("math", nightly, None, three + LATE_SECONDS - 1) is not None
    assert due("math", nightly, None, three + LATE_SECONDS + 60) is None
    assert due("math", nightly, run, three + 86_400) is not None


def test_what_a_run_may_take() -> None:
    run = ShadowRun("math", 0.0, 10.0, 100.0, 5, taken=3)
    assert [run.left(now) for now in (9.0, 10.0, 99.0, 100.0)] == [0, 2, 2, 0]
    assert ShadowRun("math", 0.0, 10.0, 100.0).left(50.0) is None
    assert ShadowRun("math", 0.0, 10.0, 100.0, 5, taken=9).left(50.0) == 0
