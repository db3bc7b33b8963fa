"""Failures at full against the baseline's earlier rate: exact e-processes, one budget for both halves, and what they see."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from canary.domain.evidence import GateEvidence, Verdict
from canary.domain.pairs import Arm
from canary.stats.live import LiveContext, LiveState, fold
from canary.stats.live_gates import judge
from canary.stats.recorded import BETTER, WORSE, Recorded, log_odds_bets, upper_bound
from tests.stats.live_traffic import CONTEXT, SINCE, seen

ALPHA = CONTEXT.safety_alpha
MARGIN = CONTEXT.gates.error_margin


def mean_value(rates: tuple[float, ...], against: float, factors: tuple[float, ...]) -> float:
    """Expectation of the e-process over every sequence of failures."""
    total = 0.0
    for failed in product((0, 1), repeat=len(rates)):
        chance = math.prod(p if x else 1 - p for p, x in zip(rates, failed, strict=True))
        total += chance * math.exp(log_odds_bets(sum(failed), len(failed), against, factors))
    return total


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.3, 0.9])
@pytest.mark.parametrize("factors", [WORSE, BETTER])
def test_at_the_null_the_mean_is_one(rate: float, factors: tuple[float, ...]) -> None:
    for n in (1, 4, 8):
        assert mean_value((rate,) * n, rate, factors) == pytest.approx(1.0, abs=1e-12)


def test_inside_the_null_nothing_is_gained_however_the_rate_moves() -> None:
    """What counts is the mean of the conditional probabilities; 40 random courses on either side of it."""
    dice = np.random.default_rng(5)
    for _ in range(40):
        rates = tuple(float(p) for p in dice.random(6) ** 3)
        mean = sum(rates) / 6
        assert mean_value(rates, mean, WORSE) <= 1 + 1e-12
        assert mean_value(rates, mean, BETTER) <= 1 + 1e-12
        assert mean_value(rates, min(mean * 1.2, 0.99), WORSE) <= 1 + 1e-12
        assert mean_value(rates, mean * 0.8, BETTER) <= 1 + 1e-12


def test_the_bound_covers_and_is_not_far() -> None:
    assert upper_bound(0, 0, 0.01) == 1.0
    assert upper_bound(3, 3, 0.01) == 1.0
    for failures, requests in ((0, 500), (10, 1_000), (100, 10_000)):
        found = upper_bound(failures, requests, 0.0025)
        assert log_odds_bets(failures, requests, found, BETTER) >= math.log(400)
        assert log_odds_bets(failures, requests, found - 2e-6, BETTER) < math.log(400)
    assert upper_bound(0, 500, 0.0025) < 0.018
    assert upper_bound(10, 1_000, 0.0025) < 0.028
    assert upper_bound(100, 10_000, 0.0025) < 0.015


def course(seed: int, earlier: int, at_full: int, baseline: float, candidate: float) -> tuple[bool, int]:
    """Whether an excess was ever proven, and after how many requests at full."""
    dice = np.random.default_rng(seed)
    record = Recorded(earlier, int((dice.random(earlier) < baseline).sum()))
    for n, failed in enumerate(dice.random(at_full) < candidate, start=1):
        record = record.add_candidate(bool(failed), MARGIN, ALPHA)
        if record.proven(ALPHA):
            return True, n
    return False, at_full


def test_a_candidate_at_the_margin_is_killed_seldom() -> None:
    """Its rate is the baseline's and the whole margin, and it is looked at after every request: at most alpha, .005."""
    assert sum(course(seed, 300, 400, 0.02, 0.02 + MARGIN)[0] for seed in range(60)) <= 2


@pytest.mark.prove
def test_a_candidate_at_the_margin_is_killed_seldom_at_full_size() -> None:
    n = np.arange(1.0, 1_501.0)
    for earlier in (60, 300, 2_000):
        runs, killed = 1_000, 0
        for seed in range(runs):
            dice = np.random.default_rng(seed)
            bound = upper_bound(int((dice.random(earlier) < 0.02).sum()), earlier, ALPHA / 2)
            failed = np.cumsum(dice.random(len(n)) < 0.02 + MARGIN).astype(float)
            killed += bool((np.asarray(log_odds_bets(failed, n, bound + MARGIN, WORSE)) >= math.log(2 / ALPHA)).any())
        assert killed <= runs * (ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / runs))


def test_a_candidate_that_begins_to_fail_is_killed() -> None:
    for earlier, candidate, budget in ((1_000, 0.10, 200), (1_000, 0.30, 40), (200, 0.30, 60)):
        needed = [course(seed, earlier, 1_000, 0.01, candidate) for seed in range(15)]
        assert all(killed for killed, _ in needed)
        assert np.median([n for _, n in needed]) <= budget


def at_full(earlier: int, failing: int, now_seen: int, every: int, context: LiveContext = CONTEXT) -> LiveState:
    """A canary stage with both variants, then full; one request in `failing` and in `every` fails."""
    before = [
        seen(n, (Arm.BASELINE, Arm.CANDIDATE)[n % 2], finish_reason="error" if failing and n % (2 * failing) == 0 else "stop")
        for n in range(2 * earlier)
    ]
    state = fold(context, LiveState("canary-5", SINCE), before).enter("full", SINCE + 2 * earlier, carry=False)
    after = [
        seen(2 * earlier + n, Arm.CANDIDATE, finish_reason="error" if every and n % every == 0 else "stop")
        for n in range(now_seen)
    ]
    return fold(context, state, after)


def errors(state: LiveState, context: LiveContext = CONTEXT, late: float = 1.0) -> GateEvidence:
    newest = max((max(pair) for pair in state.newest.values()), default=SINCE)
    (found,) = judge(context, state, ["errors"], newest + late, 3600.0)
    return found


def test_the_gate_speaks_of_the_record_and_of_what_is_missing() -> None:
    cases = (
        (at_full(20, 0, 100, 0), Verdict.NO_DATA, "no_baseline"),
        (at_full(0, 0, 100, 2), Verdict.NO_DATA, "no_baseline"),
        (at_full(200, 0, 0, 0), Verdict.NO_DATA, "no_data"),
        (at_full(200, 0, 30, 0), Verdict.INCONCLUSIVE, "too_few"),
        (at_full(200, 100, 100, 0), Verdict.PASS, "no_excess"),
        (at_full(200, 100, 120, 30), Verdict.INCONCLUSIVE, "excess_possible"),
        (at_full(200, 100, 60, 3), Verdict.FAIL, "candidate_fails"),
    )
    for state, verdict, reason in cases:
        found = errors(state)
        assert (found.verdict, found.reason) == (verdict, reason), found.sentence
    assert errors(cases[4][0], late=4_000.0).reason == "stale"
    assert errors(cases[6][0], late=4_000.0).verdict is Verdict.FAIL, "a proof does not grow old"
    proven = errors(cases[6][0])
    assert "20 of 60 requests were failed requests; the baseline had 2 of 200 in the earlier stages" in proven.sentence
    assert proven.threshold == pytest.approx(upper_bound(2, 200, ALPHA / 2) + MARGIN)
    assert proven.n == 60


def test_what_the_comparison_proved_before_full_stays_proven() -> None:
    failing = [seen(n, (Arm.BASELINE, Arm.CANDIDATE)[n % 2], finish_reason="error" if n % 2 else "stop") for n in range(200)]
    state = fold(CONTEXT, LiveState("canary-5", SINCE), failing).enter("full", SINCE + 200, carry=False)
    assert errors(state).verdict is Verdict.FAIL


def test_the_record_outlives_stages_and_its_bound_is_frozen() -> None:
    state = at_full(200, 100, 10, 0)
    bound = state.recorded["errors"].bound
    again = state.enter("canary-5", SINCE + 1_000, carry=False)
    again = fold(CONTEXT, again, [seen(1_000 + n, Arm.BASELINE, finish_reason="error") for n in range(50)])
    back = fold(CONTEXT, again.enter("full", SINCE + 2_000, carry=False), [seen(2_000, Arm.CANDIDATE, finish_reason="stop")])
    assert back.recorded["errors"] == replace(state.recorded["errors"], requests=11)
    assert back.recorded["errors"].bound == bound
    assert LiveState.from_json(back.to_json()) == back
    carried = at_full(60, 0, 0, 0).enter("full", SINCE + 500, carry=True)
    assert carried.recorded["errors"].earlier_requests == 60


def test_any_split_of_the_stream_gives_the_same_record() -> None:
    dice = np.random.default_rng(8)
    stream = [seen(n, Arm.CANDIDATE, finish_reason=("stop", "error")[int(dice.random() < 0.2)]) for n in range(90)]
    start = replace(LiveState("full", SINCE), recorded={"errors": Recorded(400, 6)})
    whole = fold(CONTEXT, start, stream)
    for size in (1, 7, 64):
        state = start
        for at in range(0, len(stream), size):
            state = LiveState.from_json(fold(CONTEXT, state, stream[at : at + size]).to_json())
        assert state == whole
