"""Failed arms: a candidate that fails alone is killed, shared failures are the baseline's, and few requests never pass."""

import numpy as np
import pytest

from canary.domain.evidence import GateRole, Verdict
from canary.domain.pairs import Arm, Pair
from canary.domain.policy import Gates
from canary.stats.bounded import log_budget
from canary.stats.errors import Errors
from tests.stats.make import context, expectation, fold, gate, generation, pair

OK = pair()
CANDIDATE = pair(candidate=generation(error="timeout"))
BASELINE = pair(baseline=generation(Arm.BASELINE, error="timeout"))
BOTH = pair(candidate=generation(error="timeout"), baseline=generation(Arm.BASELINE, error="timeout"))


def finish(baseline: str, candidate: str) -> Pair:
    return pair(candidate=generation(finish_reason=candidate), baseline=generation(Arm.BASELINE, finish_reason=baseline))


def test_the_process_does_not_gain_at_the_margin() -> None:
    where = context(Gates(error_margin=0.05))
    for outcomes in (
        [(0.95, OK), (0.05, CANDIDATE)],
        [(0.35, OK), (0.2, BASELINE), (0.25, CANDIDATE), (0.2, BOTH)],
        [(0.475, BASELINE), (0.525, CANDIDATE)],
        [(0.9, OK), (0.1, BASELINE)],
    ):
        for length in (1, 2, 5):
            assert expectation(Errors(), where, "errors", outcomes, length) <= 1 + 1e-12
    assert expectation(Errors(), where, "errors", [(0.85, OK), (0.15, CANDIDATE)], 5) > 1.01
    assert expectation(Errors(), where, "errors.baseline", [(0.95, OK), (0.05, BASELINE)], 5) <= 1 + 1e-12


def test_a_candidate_that_always_fails_is_killed_within_a_dozen_requests() -> None:
    found = gate(Errors(), context(), [CANDIDATE] * 12)
    assert (found.verdict, found.reason, found.role) == (Verdict.FAIL, "candidate_fails", GateRole.SAFETY)
    assert gate(Errors(), context(), [CANDIDATE] * 5).verdict is Verdict.NO_DATA
    assert "12 candidate and 0 baseline arms failed in 12 requests" in found.sentence


def test_a_candidate_that_fails_on_every_fifth_request_is_killed_soon() -> None:
    sums = fold(Errors(), context(), ([CANDIDATE] + [OK] * 4) * 16)
    assert sums.peaks["errors"] >= log_budget(0.01)


def test_false_kills_at_the_margin_stay_in_their_budget() -> None:
    """A5.20: 300 attempts of 500 requests with exactly the margin's excess of failures."""
    part, where = Errors(), context()
    added = [part.increments(where, p) for p in (OK, CANDIDATE, BASELINE, BOTH)]
    rng, killed = np.random.default_rng(9), 0
    for _ in range(300):
        drawn = rng.choice(4, size=500, p=[0.93, 0.03, 0.02, 0.02])
        values, peak = np.zeros_like(added[0]), 0.0
        for one in drawn.tolist():
            values = values + added[one]
            if one == 1:  # only then can it rise to a peak
                peak = max(peak, part.log_e(where, values)["errors"])
        killed += peak >= log_budget(0.01)
    assert killed <= 3 + 5


def test_equal_failures_pass_and_a_failing_baseline_is_told() -> None:
    excess, baseline = Errors().assess(context(), fold(Errors(), context(), ([BOTH] + [OK] * 1) * 30))
    assert excess.verdict is Verdict.PASS
    assert excess.value == 0
    assert (baseline.gate, baseline.role, baseline.verdict) == ("baseline", GateRole.HARNESS, Verdict.FAIL)


def test_an_honest_route_passes_after_twenty_requests() -> None:
    few = Errors().assess(context(), fold(Errors(), context(), [OK] * 19))
    assert [(g.verdict, g.needed) for g in few] == [(Verdict.NO_DATA, 1)] * 2
    enough = Errors().assess(context(), fold(Errors(), context(), [OK] * 20))
    assert [g.verdict for g in enough] == [Verdict.PASS] * 2
    assert [g.verdict for g in Errors().assess(context(), fold(Errors(), context(), []))] == [Verdict.NO_DATA] * 2


def test_between_twenty_and_a_hundred_it_neither_passes_nor_kills() -> None:
    """A3.7: one error of few requests is chance, and decides nothing."""
    pairs = [OK] * 16 + [CANDIDATE] * 8
    found = gate(Errors(), context(), pairs)
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "suspicious")


def test_an_estimate_above_the_margin_is_no_pass() -> None:
    found = gate(Errors(), context(), [OK] * 48 + [CANDIDATE] * 2)
    assert (found.verdict, found.reason, found.needed) == (Verdict.INCONCLUSIVE, "excess_possible", 150)
    assert gate(Errors(), context(), [OK] * 197 + [CANDIDATE] * 2).verdict is Verdict.INCONCLUSIVE
    assert gate(Errors(), context(), [OK] * 198 + [CANDIDATE] * 2).verdict is Verdict.PASS
    assert gate(Errors(), context(), [OK] * 47 + [CANDIDATE] * 2 + [BASELINE] * 2).verdict is Verdict.PASS


def test_a_kill_is_not_taken_back() -> None:
    found = gate(Errors(), context(), [CANDIDATE] * 12 + [OK] * 500)
    assert found.verdict is Verdict.FAIL


def test_the_interval_holds_the_excess() -> None:
    found = gate(Errors(), context(), ([CANDIDATE] + [OK] * 19) * 30)
    assert found.value == pytest.approx(0.05)
    assert found.low is not None
    assert found.high is not None
    assert 0.0 < found.low < 0.05 < found.high < 0.11
    none = gate(Errors(), context(), [OK] * 500)
    assert none.high is not None
    assert none.high < 0.02


def test_finish_reasons_that_differ_are_counted() -> None:
    pairs = [finish("stop", "length"), finish("length", "stop"), finish("stop", "stop"), finish("stop", "length"), CANDIDATE]
    details = gate(Errors(), context(), pairs).details
    assert (details["finish_differs"], details["candidate_longer"], details["candidate_shorter"]) == (3, 2, 1)
    assert (details["candidate_failed"], details["both_answered"]) == (1, 4)
