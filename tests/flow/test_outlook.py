"""Which ordinals are timed: in order, until the speed gate is decided, and none where nobody asks for a speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.pairs import Pair
from canary.domain.traffic import Stratum
from canary.flow.outlook import Outlook
from canary.flow.ports import FoldItem
from canary.stats.battery import Battery, pack
from tests.stats import make


def timed_pair(battery: Battery, ordinal: int, ratio: float, *, failed: bool = False) -> Pair:
    """A greedy pair whose candidate is `ratio` times as fast, or fails."""
    pair = make.pair(
        ordinal,
        stratum=Stratum.GREEDY,
        candidate=make.generation(error="out of memory") if failed else None,
        timings=(make.timing(0.1), make.timing(0.1 / ratio)),
    )
    increments = battery.increments(pair)
    assert increments is not None
    return replace(pair, increments=pack(increments))


@pytest.fixture
def battery() -> Battery:
    return Battery(make.context())


def needed(battery: Battery, ratio: float) -> int:
    """Ordinals that are timed at a constant ratio."""
    outlook = Outlook(battery, battery.start(), [], drill=False)
    for ordinal in range(200):
        if not outlook.wants_timing:
            return ordinal
        outlook.add(timed_pair(battery, ordinal, ratio))
    raise AssertionError("the speed gate never closed")


def test_timing_stops_when_the_gate_is_decided(battery: Battery) -> None:
    assert 5 <= needed(battery, 3.0) <= 60
    assert 5 <= needed(battery, 0.3) <= 60


def test_stored_pairs_count_before_they_are_folded(battery: Battery) -> None:
    count = needed(battery, 3.0)
    pairs = [timed_pair(battery, i, 3.0) for i in range(count)]
    items = [FoldItem(p.ordinal, p.increments, "", 0.0) for p in pairs]
    assert not Outlook(battery, battery.start(), items, drill=False).wants_timing
    folded = battery.fold(battery.start(), items[:3])
    assert not Outlook(battery, folded, items[3:], drill=False).wants_timing
    assert Outlook(battery, folded, items[3:-1], drill=False).wants_timing


def test_another_workers_gap_changes_nothing(battery: Battery) -> None:
    outlook = Outlook(battery, battery.start(), [], drill=False)
    for ordinal in range(5, 105):
        outlook.add(timed_pair(battery, ordinal, 3.0))
    assert outlook.wants_timing


def test_neither_a_drill_nor_a_failing_candidate_is_timed(battery: Battery) -> None:
    assert not Outlook(battery, battery.start(), [], drill=True).wants_timing
    outlook = Outlook(battery, battery.start(), [], drill=False)
    for ordinal in range(200):
        outlook.add(timed_pair(battery, ordinal, 1.0, failed=True))
    assert not outlook.wants_timing
