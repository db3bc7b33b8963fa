"""Which ordinals are timed: in order, until the speed gate is decided, and none where nobody asks for a speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.modes import GateMode, Mode
from canary.domain.pairs import Arm, Pair
from canary.domain.policy import Gates
from canary.domain.traffic import Stratum
from canary.flow.outlook import Outlook
from canary.flow.ports import FoldItem
from canary.stats.battery import pack
from canary.stats.controlled import ControlledBattery
from tests.stats import make

OBSERVED = tuple(GateMode(name, Mode.OBSERVE, "few are timed") for name in ("ttft", "ttft_tail"))


def timed_pair(battery: ControlledBattery, ordinal: int, ratio: float, *, failed: bool = False, control: bool = False) -> Pair:
    """A greedy pair whose candidate is `ratio` times as fast, or fails."""
    pair = make.pair(
        ordinal,
        stratum=Stratum.GREEDY,
        baseline=make.generation(Arm.BASELINE, k=0, steps=[(0, 0)] * 40),
        candidate=make.generation(error="out of memory") if failed else make.generation(steps=[(0, 0)] * 40),
        timings=(make.timing(0.1), make.timing(0.1 / ratio)),
    )
    increments = battery.of(control=control).increments(pair)
    assert increments is not None
    return replace(pair, increments=pack(increments), control=control)


@pytest.fixture
def battery() -> ControlledBattery:
    return ControlledBattery(make.context(Gates(modes=OBSERVED)))


def needed(battery: ControlledBattery, ratio: float) -> int:
    """Ordinals that are timed at a constant ratio."""
    outlook = Outlook(battery, battery.start(), [], drill=False)
    for ordinal in range(200):
        if not outlook.wants_timing:
            return ordinal
        outlook.add(timed_pair(battery, ordinal, ratio))
    raise AssertionError("the speed gate never closed")


def test_timing_stops_when_the_gate_is_decided(battery: ControlledBattery) -> None:
    assert 5 <= needed(battery, 3.0) <= 60
    assert 5 <= needed(battery, 0.3) <= 60


def test_stored_pairs_count_before_they_are_folded(battery: ControlledBattery) -> None:
    count = needed(battery, 3.0)
    pairs = [timed_pair(battery, i, 3.0) for i in range(count)]
    items = [FoldItem(p.ordinal, p.increments, "", 0.0) for p in pairs]
    assert not Outlook(battery, battery.start(), items, drill=False).wants_timing
    folded = battery.fold(battery.start(), items[:3])
    assert not Outlook(battery, folded, items[3:], drill=False).wants_timing
    assert Outlook(battery, folded, items[3:-1], drill=False).wants_timing


def test_another_workers_gap_changes_nothing(battery: ControlledBattery) -> None:
    outlook = Outlook(battery, battery.start(), [], drill=False)
    for ordinal in range(5, 105):
        outlook.add(timed_pair(battery, ordinal, 3.0))
    assert outlook.wants_timing


def test_neither_a_drill_nor_a_failing_candidate_is_timed(battery: ControlledBattery) -> None:
    assert not Outlook(battery, battery.start(), [], drill=True).wants_timing
    outlook = Outlook(battery, battery.start(), [], drill=False)
    for ordinal in range(200):
        outlook.add(timed_pair(battery, ordinal, 1.0, failed=True))
    assert not outlook.wants_timing


def test_a_pair_of_the_control_arm_is_always_timed_and_decides_nothing_about_the_candidate(battery: ControlledBattery) -> None:
    count = needed(battery, 3.0)
    outlook = Outlook(battery, battery.start(), [], drill=False)
    for ordinal in range(2 * count):
        outlook.add(timed_pair(battery, ordinal, 3.0, control=ordinal % 2 == 1))
        assert outlook.wants(control=True)
        assert outlook.wants(control=False) is (ordinal // 2 + 1 < count)
    assert not Outlook(battery, battery.start(), [], drill=True).wants(control=True)


def test_timing_goes_on_while_an_asked_ttft_gate_is_open() -> None:
    speed_only = needed(ControlledBattery(make.context(Gates(modes=OBSERVED))), 3.0)
    asked = ControlledBattery(make.context(Gates(modes=OBSERVED[:1])))
    outlook = Outlook(asked, asked.start(), [], drill=False)
    for ordinal in range(speed_only + 1):
        outlook.add(timed_pair(asked, ordinal, 3.0))
    assert outlook.wants_timing
