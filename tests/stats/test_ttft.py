"""TTFT: the median by signs with a slack, the tail by counts against a frozen threshold; both ask for non-inferiority."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from canary.domain.evidence import GateRole, Verdict
from canary.domain.pairs import Pair, Timing
from canary.domain.policy import Gates
from canary.stats.bounded import log_budget
from canary.stats.part import Context
from canary.stats.ttft import Ttft
from canary.stats.ttft_tail import calibrated, slow_from
from tests.stats.make import CALIBRATION, context, expectation, fold, gate, pair, timing

GOAL = log_budget(0.01)
SLO = Gates(ttft_slo_seconds=0.5)


def first_tokens(baseline: float, candidate: float) -> Pair:
    """A pair with these seconds to the first token."""
    return pair(timings=(timing(0.02, ttft=baseline), timing(0.02, ttft=candidate)))


def walk(seconds: NDArray[np.float64], where: Context) -> dict[str, NDArray[np.float64]]:
    """The e-processes after every request of `seconds`, [requests, 2] (baseline, candidate)."""
    part = Ttft()
    sums = np.cumsum([part.increments(where, first_tokens(b, c)) for b, c in seconds.tolist()], axis=0)
    return {key: np.asarray(value) for key, value in part.log_e(where, sums).items()}


def crossing(log_e: NDArray[np.float64]) -> int:
    """Requests until the budget is reached; 9999 if never."""
    hits = np.flatnonzero(log_e >= GOAL)
    return int(hits[0]) + 1 if hits.size else 9999


def medians(seed: int, rise: float, size: int, sd: float = 0.35) -> NDArray[np.float64]:
    """Baseline TTFT around 100 ms; the candidate's is `1 + rise` times that at the median, with noise of `sd` on its log."""
    rng = np.random.default_rng(seed)
    baseline = 0.1 * np.exp(0.4 * rng.standard_normal(size))
    return np.stack([baseline, baseline * (1 + rise) * np.exp(sd * rng.standard_normal(size))], axis=1)


def slow(seed: int, rise: float, size: int, tied: float = 0.8) -> NDArray[np.float64]:
    """One in twenty first tokens over the SLO in the baseline, `rise` more in the candidate, with tied causes."""
    rng = np.random.default_rng(seed)
    both, own = rng.standard_normal((size, 1)), rng.standard_normal((size, 2))
    load = math.sqrt(tied) * both + math.sqrt(1 - tied) * own  # [requests, 2]
    return np.where(load > norm.isf([0.05, 0.05 + rise]), 1.0, 0.1)


def test_no_median_process_gains_where_half_are_within() -> None:
    within, beyond = first_tokens(0.1, 0.115), first_tokens(0.1, 0.116)
    for length in (1, 3, 6):
        for key in ("ttft.within", "ttft.beyond"):
            assert expectation(Ttft(), context(), key, [(0.5, within), (0.5, beyond)], length) <= 1 + 1e-12
    assert expectation(Ttft(), context(), "ttft.within", [(0.7, within), (0.3, beyond)], 6) > 1.2


def test_no_tail_process_gains_at_the_margin() -> None:
    fast, late = 0.1, 0.9
    both, neither = first_tokens(late, late), first_tokens(fast, fast)
    worse, better = first_tokens(fast, late), first_tokens(late, fast)
    for outcomes in (
        [(0.02, worse), (0.98, neither)],
        [(0.27, worse), (0.25, better), (0.28, neither), (0.2, both)],
        [(0.51, worse), (0.49, better)],
    ):
        for length in (1, 3, 5):
            for key in ("ttft.tail_below", "ttft.tail_above"):
                assert expectation(Ttft(), context(SLO), key, outcomes, length) <= 1 + 1e-12
    assert expectation(Ttft(), context(SLO), "ttft.tail_above", [(0.5, worse), (0.5, neither)], 4) > 1.5


def test_equal_arms_pass_the_median_within_twice_the_tabled_requests() -> None:
    needed = [crossing(walk(medians(seed, 0.0, 300), context())["ttft.within"]) for seed in range(16)]
    assert np.median(needed) <= 2 * 128


@pytest.mark.parametrize("key", ["ttft.within", "ttft.beyond"])
def test_false_declarations_of_the_median_stay_in_their_budget(key: str) -> None:
    """50 runs of 150 requests in which half are within."""
    false = 0
    for seed in range(50):
        coin = np.random.default_rng(seed).random(150) < 0.5
        false += walk(np.stack([np.full(150, 0.1), np.where(coin, 0.1, 0.2)], axis=1), context())[key].max() >= GOAL
    assert false <= 2


def test_false_certificates_of_the_tail_stay_in_their_budget() -> None:
    """20 runs of 400 requests with an excess exactly at the margin."""
    assert sum(walk(slow(seed, 0.02, 400), context(SLO))["ttft.tail_below"].max() >= GOAL for seed in range(20)) <= 1


@pytest.mark.prove
def test_power_and_false_alarms_at_full_size() -> None:
    """The rows of statistics 4 within a factor of two, and at most 1 % (+ 3 standard errors) of false declarations."""
    where = context(SLO)
    for rise, tabled in ((0.0, 128), (0.05, 505)):
        needed = [crossing(walk(medians(seed, rise, 1200), where)["ttft.within"]) for seed in range(100)]
        assert np.median(needed) <= 2 * tabled, rise
    needed = [crossing(walk(slow(seed, 0.0, 3000), where)["ttft.tail_below"]) for seed in range(60)]
    assert np.median(needed) <= 2 * 1179
    false = sum(walk(slow(seed, 0.02, 1500), where)["ttft.tail_below"].max() >= GOAL for seed in range(300))
    assert false <= 3 + 3 * math.sqrt(3)
    none = sum(walk(medians(seed, 0.10 + 0.005 / 0.1, 800), context(Gates()))["ttft.within"].max() >= GOAL for seed in range(300))
    assert none <= 3 + 3 * math.sqrt(3)


def test_an_equal_candidate_passes_with_an_interval() -> None:
    found = gate(Ttft(), context(), [first_tokens(b, c) for b, c in medians(3, 0.0, 300).tolist()])
    assert (found.gate, found.role, found.verdict, found.reason) == ("ttft", GateRole.ECONOMY, Verdict.PASS, "in_time")
    assert (found.n, found.needed, found.progress, found.threshold) == (300, 0, 1.0, 1.1)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.95 < found.high <= 1.1  # the value is about (100 - 5) / 100
    assert "1.1 times the baseline's TTFT + 5 ms" in found.sentence


def test_a_later_first_token_fails() -> None:
    found = gate(Ttft(), context(), [first_tokens(0.1, 0.2)] * 40)
    assert (found.verdict, found.reason, found.needed) == (Verdict.FAIL, "later_first_token", None)
    assert found.value == pytest.approx(1.95, rel=0.02)


def test_the_slack_spares_short_prompts() -> None:
    assert fold(Ttft(), context(), [first_tokens(0.010, 0.015)])["within"] == 1
    assert fold(Ttft(), context(Gates(ttft_slack_seconds=0.0)), [first_tokens(0.010, 0.015)])["beyond"] == 1


def test_in_between_it_says_how_many_more() -> None:
    mixed = [first_tokens(0.1, 0.1)] * 8 + [first_tokens(0.1, 0.3)] * 2
    found = gate(Ttft(), context(), mixed)
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "not_yet")
    assert found.needed is not None
    assert gate(Ttft(), context(), mixed * (1 + math.ceil(found.needed / 10))).verdict is Verdict.PASS
    assert gate(Ttft(), context(), [first_tokens(0.1, 0.3)] * 2).needed is None


def test_a_route_that_turned_is_judged_by_the_side_that_leads() -> None:
    good, bad = [first_tokens(0.1, 0.1)], [first_tokens(0.1, 0.3)]
    assert gate(Ttft(), context(), good * 40 + bad * 120).verdict is Verdict.FAIL
    assert gate(Ttft(), context(), bad * 40 + good * 200).verdict is Verdict.PASS


def test_untimed_and_broken_timings_are_counted_and_short_answers_count() -> None:
    at_load = replace(timing(0.02), concurrency=8)
    pairs = [pair(), pair(timings=(timing(0.02), Timing(math.nan, 1.0, 4))), pair(timings=(at_load, timing(0.02)))]
    found = gate(Ttft(), context(), [*pairs, pair(timings=(at_load, at_load))])
    assert (found.verdict, found.reason) == (Verdict.NO_DATA, "no_data")
    assert found.details == {"untimed": 1, "invalid": 1, "unmatched": 1, "other_load": 1}
    assert gate(Ttft(), context(), [pair(timings=(timing(0.02, num_tokens=1), timing(0.02, num_tokens=1)))]).n == 1


def test_the_tail_certifies_against_the_slo_and_fails_on_slow_first_tokens() -> None:
    clean = gate(Ttft(), context(SLO), [first_tokens(0.1, 0.1)] * 500, "ttft_tail")
    assert (clean.verdict, clean.reason, clean.value, clean.needed) == (Verdict.PASS, "no_excess", 0.0, 0)
    assert clean.high is not None
    assert clean.high <= 0.02
    assert clean.details["slow_from"] == "slo"
    late = gate(Ttft(), context(SLO), [first_tokens(0.1, 0.9)] * 40, "ttft_tail")
    assert (late.verdict, late.reason, late.details["only_candidate"]) == (Verdict.FAIL, "slow_first_tokens", 40)
    few = gate(Ttft(), context(SLO), [first_tokens(0.1, 0.1)] * 50, "ttft_tail")
    assert (few.verdict, few.reason) == (Verdict.INCONCLUSIVE, "not_yet")
    assert few.needed is not None
    more = [first_tokens(0.1, 0.1)] * (50 + few.needed)
    assert gate(Ttft(), context(SLO), more, "ttft_tail").verdict is Verdict.PASS


def test_without_an_slo_the_calibrating_baseline_says_what_slow_is() -> None:
    timed = [first_tokens(0.01 * i, 5.0) for i in range(1, 21)]
    assert calibrated(context(), [*timed, None, pair()]) == pytest.approx(0.1905)
    assert calibrated(context(), timed[:9]) is None
    frozen = replace(context(), calibration=replace(CALIBRATION, ttft_p95=0.19))
    assert slow_from(frozen) == 0.19
    assert fold(Ttft(), frozen, [first_tokens(0.2, 0.3)])["tail.both"] == 1
    assert gate(Ttft(), frozen, [first_tokens(0.1, 0.3)] * 9, "ttft_tail").details["slow_from"] == "baseline_p95"


def test_while_nothing_says_what_slow_is_the_tail_is_open() -> None:
    uncalibrated = gate(Ttft(), context(calibrated=False), [first_tokens(0.1, 0.1)], "ttft_tail")
    assert (uncalibrated.verdict, uncalibrated.reason) == (Verdict.INCONCLUSIVE, "calibrating")
    nothing = gate(Ttft(), context(), [first_tokens(0.1, 0.1)], "ttft_tail")
    assert (nothing.verdict, nothing.reason) == (Verdict.INCONCLUSIVE, "no_threshold")
    assert "gates.ttft_slo" in nothing.sentence
    assert gate(Ttft(), context(SLO), [], "ttft_tail").reason == "not_yet"
