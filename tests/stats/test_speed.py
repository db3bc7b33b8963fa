"""Speed: a paired sign test at the median with its interval, guarded by the clipped mean of the tail."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from canary.domain.evidence import GateRole, Verdict
from canary.domain.pairs import Pair, Timing
from canary.domain.policy import Gates
from canary.stats.bounded import log_budget
from canary.stats.histogram import EDGES
from canary.stats.speed import Speed
from tests.stats.make import context, expectation, fold, gate, pair, timing

GATES = Gates(speed_ratio=1.2)


def ratio(value: float) -> Pair:
    """A pair whose candidate is `value` times as fast per token."""
    return pair(timings=(timing(0.03 * value), timing(0.03)))


def ratios(rng: np.random.Generator, median: float, size: int) -> list[float]:
    """Student t3 noise of 15 % on the log, and one per cent of stalls (statistics 4)."""
    log_ratio = math.log(median) + 0.15 * rng.standard_t(3, size=size)
    return np.exp(np.where(rng.random(size) < 0.01, log_ratio - 2.0, log_ratio)).tolist()


def walk(values: Sequence[float]) -> Iterator[dict[str, float]]:
    """The e-processes after every request."""
    part, where = Speed(), context(GATES)
    sums = np.zeros(len(part.names(where)))
    for value in values:
        sums = sums + part.increments(where, ratio(value))
        yield part.log_e(where, sums)


def test_sign_processes_do_not_gain_at_the_median_and_ties_help_nobody() -> None:
    where = context(GATES)
    tie = pair(timings=(Timing(0.5, 12.5, 11), Timing(0.5, 10.5, 11)))  # 1.2 / 1.0, both exact
    assert fold(Speed(), where, [tie])["tied"] == 1
    for outcomes in ([(0.5, ratio(2)), (0.5, ratio(1))], [(0.5, ratio(2)), (0.25, ratio(1)), (0.25, tie)], [(1.0, tie)]):
        for length in (1, 3, 6):
            assert expectation(Speed(), where, "speed.above", outcomes, length) <= 1 + 1e-12
            assert expectation(Speed(), where, "speed.below", outcomes, length) <= 1 + 1e-12
    assert expectation(Speed(), where, "speed.above", [(0.7, ratio(2)), (0.3, ratio(1))], 6) > 1.2


def test_tail_processes_do_not_gain_at_equal_speed() -> None:
    even = [(0.5, ratio(2)), (0.5, ratio(0.5))]
    skewed = [(0.8, ratio(math.sqrt(2))), (0.2, ratio(0.25))]
    clipped = [(0.5, ratio(1000)), (0.5, ratio(0.001))]
    for outcomes in (even, skewed, clipped):
        for key in ("speed.tail_above", "speed.tail_below"):
            assert expectation(Speed(), context(GATES), key, outcomes, 5) <= 1 + 1e-9


def test_a_true_ratio_of_one_and_a_half_is_declared_within_forty_requests() -> None:
    needed = []
    for seed in range(60):
        steps = walk(ratios(np.random.default_rng(seed), 1.5, 200))
        both = (n for n, e in enumerate(steps, 1) if min(e["speed.above"], e["speed.tail_above"]) >= log_budget(0.01))
        needed.append(next(both, 9999))
    assert np.median(needed) <= 40


@pytest.mark.parametrize("side", ["above", "below"])
def test_false_declarations_at_the_threshold_stay_in_their_budget(side: str) -> None:
    """100 runs of 200 requests exactly at the threshold."""
    false = 0
    for seed in range(100):
        steps = walk(np.exp(math.log(1.2) + 0.2 * np.random.default_rng(seed).standard_normal(200)).tolist())
        false += any(e[f"speed.{side}"] >= log_budget(0.01) for e in steps)
    assert false <= 3


@pytest.mark.prove
def test_power_and_false_alarms_at_full_size() -> None:
    """1,000 runs: the table of statistics 4 within a factor of two, and at most 1 % of false declarations."""
    false = 0
    for seed in range(1000):
        steps = walk(np.exp(math.log(1.2) + 0.2 * np.random.default_rng(seed).standard_normal(1000)).tolist())
        false += any(e["speed.above"] >= log_budget(0.01) for e in steps)
    assert false <= 10 + 3 * math.sqrt(10)
    for median, tabled in ((1.5, 21), (1.3, 106)):
        needed = []
        for seed in range(200):
            steps = walk(ratios(np.random.default_rng(seed), median, 600))
            needed.append(next((n for n, e in enumerate(steps, 1) if e["speed.above"] >= log_budget(0.01)), 9999))
        assert np.median(needed) <= 2 * tabled


def test_a_faster_candidate_passes_with_an_interval() -> None:
    values = ratios(np.random.default_rng(4), 1.5, 120)
    found = gate(Speed(), context(GATES), [ratio(v) for v in values])
    assert (found.verdict, found.reason, found.role, found.n) == (Verdict.PASS, "faster", GateRole.ECONOMY, 120)
    assert found.value == pytest.approx(float(np.median(values)), rel=0.03)
    assert found.low is not None
    assert found.high is not None
    assert 1.2 <= found.low < 1.5 < found.high < 1.8
    assert (found.needed, found.progress) == (0, 1.0)


def test_a_slow_candidate_fails() -> None:
    found = gate(Speed(), context(GATES), [ratio(v) for v in ratios(np.random.default_rng(4), 1.0, 120)])
    assert (found.verdict, found.reason) == (Verdict.FAIL, "too_slow")
    assert found.high is not None
    assert found.high <= 1.2


def test_faster_at_the_median_and_stalling_in_the_tail_does_not_pass() -> None:
    stalling = [ratio(v) for v in ([1.3] * 5 + [0.2] * 2) * 60]
    found = gate(Speed(), context(GATES), stalling)
    assert fold(Speed(), context(GATES), stalling).peaks["speed.above"] >= log_budget(0.01)
    assert (found.verdict, found.reason) == (Verdict.FAIL, "slower_in_the_tail")
    on_the_edge = gate(Speed(), context(GATES), [ratio(v) for v in ([1.3] * 10 + [0.25] * 2) * 12])
    assert (on_the_edge.verdict, on_the_edge.reason) == (Verdict.INCONCLUSIVE, "tail_unproven")


def test_in_between_it_says_how_many_more() -> None:
    found = gate(Speed(), context(GATES), [ratio(1.4)] * 6)
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "not_yet")
    assert found.needed is not None
    assert gate(Speed(), context(GATES), [ratio(1.4)] * (6 + found.needed)).verdict is Verdict.PASS
    assert gate(Speed(), context(GATES), [ratio(1.1)] * 3).needed is None


def test_the_interval_covers_at_every_look() -> None:
    missed = 0
    for seed in range(60):
        values = ratios(np.random.default_rng(300 + seed), 1.1, 150)
        looks = [gate(Speed(), context(Gates(speed_ratio=1.1)), [ratio(v) for v in values[:n]]) for n in (10, 30, 75, 150)]
        missed += any(not (f.low or 0) <= 1.1 <= (f.high or math.inf) for f in looks)
    assert missed <= 4


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.02, 0.0])
@pytest.mark.parametrize("arm", [0, 1])
def test_impossible_times_are_left_out_and_counted(bad: float, arm: int) -> None:
    for broken in (timing(bad), timing(0.02, ttft=bad if bad else -1.0)):
        timings = [timing(0.02), timing(0.02)]
        timings[arm] = broken
        sums = fold(Speed(), context(GATES), [pair(timings=(timings[0], timings[1]))])
        assert sums["invalid"] == 1
        assert sums.values.sum() == 1


def test_short_and_untimed_pairs_are_left_out_and_counted() -> None:
    short = pair(timings=(timing(0.02, num_tokens=7), timing(0.02)))
    single = pair(timings=(timing(0.02), timing(0.02, num_tokens=1)))
    pairs = [short, single, pair(), pair(timings=(timing(0.02), None))]
    found = gate(Speed(), context(GATES), pairs)
    assert found.verdict is Verdict.NO_DATA
    assert found.details == {"untimed": 2, "short": 2, "invalid": 0, "unmatched": 0, "other_load": 0}
    assert gate(Speed(), context(Gates(min_speed_tokens=0)), [single]).details["short"] == 1


def test_times_that_overflow_a_ratio_are_left_out() -> None:
    sums = fold(Speed(), context(GATES), [pair(timings=(timing(1e300), timing(1e-300)))])
    assert sums["invalid"] == 1


def test_a_ratio_far_outside_the_grid_gives_a_one_sided_interval() -> None:
    fast = gate(Speed(), context(GATES), [ratio(50.0)] * 30)
    assert (fast.value, fast.low, fast.high) == (pytest.approx(4.0), pytest.approx(4.0), None)
    slow = gate(Speed(), context(GATES), [ratio(0.1)] * 30)
    assert (slow.value, slow.low, slow.high) == (pytest.approx(0.5), 0.0, pytest.approx(0.5))


def test_details_hold_end_to_end_and_first_token_times() -> None:
    one = pair(timings=(timing(0.04, num_tokens=11, ttft=0.1), timing(0.02, num_tokens=21, ttft=0.2)))
    details = gate(Speed(), context(GATES), [one]).details
    assert details["end_to_end_ratio"] == pytest.approx(0.5 / 0.6)
    assert details["baseline_ttft_mean_seconds"] == pytest.approx(0.1)
    assert details["candidate_ttft_typical_seconds"] == pytest.approx(0.2)
    assert details["candidate_tokens_per_second"] == pytest.approx(21 / 0.6)
    assert details["mean_speed_up"] == pytest.approx(2.0)


def at_load(value: float, concurrency: int) -> Pair:
    """A pair with this ratio, both arms a block of so many requests."""
    tokens = 41 * concurrency
    baseline, candidate = (replace(timing(t, num_tokens=tokens), concurrency=concurrency) for t in (0.03 * value, 0.03))
    return pair(timings=(baseline, candidate))


def test_the_gate_decides_in_the_policys_load_band_and_shows_the_others() -> None:
    mixed = [ratio(1.5)] * 40 + [at_load(0.8, 8)] * 30 + [at_load(1.3, 3)] * 20
    found = gate(Speed(), context(GATES), mixed)
    assert (found.verdict, found.n, found.details["other_load"], found.details["load_band"]) == (Verdict.PASS, 40, 50, "1")
    bands = found.details["bands"]
    assert isinstance(bands, dict)
    seen = {band: (of["requests"], of["above"]) for band, of in bands.items()}
    assert seen == {"1": (40, 40), "2-4": (20, 20), "5-16": (30, 0)}
    assert bands["5-16"]["mean_speed_up"] == pytest.approx(0.8)
    low, high = bands["5-16"]["mean_speed_up_interval"]
    assert low < 0.8 < high < 1.5
    loaded = gate(Speed(), context(Gates(speed_ratio=1.2, speed_concurrency=16)), mixed)
    assert (loaded.verdict, loaded.n, loaded.details["load_band"]) == (Verdict.FAIL, 30, "5-16")
    elsewhere = gate(Speed(), context(Gates(speed_concurrency=64)), mixed)
    assert elsewhere.verdict is Verdict.NO_DATA
    assert set(elsewhere.details["bands"]) == {"1", "2-4", "5-16"}  # type: ignore[call-overload]


def test_arms_at_different_loads_are_no_pair() -> None:
    uneven = pair(timings=(timing(0.03), replace(timing(0.02), concurrency=9)))
    assert fold(Speed(), context(GATES), [uneven])["unmatched"] == 1
    nobody = pair(timings=(replace(timing(0.03), concurrency=0), replace(timing(0.02), concurrency=0)))
    with pytest.raises(ValueError, match="concurrency 0"):
        Speed().increments(context(GATES), nobody)


def test_the_guards_interval_covers_and_is_said() -> None:
    missed = 0
    for seed in range(40):
        values = ratios(np.random.default_rng(700 + seed), 1.1, 150)
        low, high = gate(Speed(), context(GATES), [ratio(v) for v in values]).details["mean_speed_up_interval"]  # type: ignore[misc]
        missed += not low <= math.exp(math.log(1.1) - 0.02) <= high
    assert missed <= 2
    assert "the mean of clipped ratios is 1.50 [" in gate(Speed(), context(GATES), [ratio(1.5)] * 60).sentence


def test_edges_rise_and_hold_one() -> None:
    assert np.all(np.diff(EDGES) > 0)
    assert np.isclose(EDGES, 1.0).any()
