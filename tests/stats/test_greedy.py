"""Greedy gaps: clean candidates certify, tokens that the reference would not choose kill, sampled requests say nothing."""

import math

import numpy as np
import pytest

from canary.domain.evidence import Verdict
from canary.domain.pairs import Arm, Pair
from canary.domain.policy import Gates
from canary.domain.traffic import Stratum
from canary.stats.bounded import log_budget
from canary.stats.greedy import Greedy
from tests.stats.make import context, expectation, fold, gate, generation, pair, rows

QUICK = Gates(gap_rate=5e-3, request_margin=0.05, noise_floor_positions=1000)


def gap_pair(candidate: list[float], baseline: list[float], stratum: Stratum = Stratum.GREEDY) -> Pair:
    return pair(
        stratum=stratum,
        candidate=generation(scored=rows([0.0] * len(candidate), candidate)),
        baseline=generation(Arm.BASELINE, scored=rows([0.0] * len(baseline), baseline), k=0),
    )


CLEAN = gap_pair([0.0] * 39 + [0.25], [0.0] * 40)
BAD = gap_pair([0.0] * 39 + [2.0], [0.0] * 40)
NOISY = gap_pair([0.0] * 40, [0.0] * 39 + [2.0])


def test_a_clean_candidate_certifies_tokens_and_requests() -> None:
    pairs = [CLEAN] * 100
    gap, request = Greedy().assess(context(QUICK), fold(Greedy(), context(QUICK), pairs))
    assert (gap.gate, gap.verdict, gap.n, gap.unit) == ("gap_certificate", Verdict.PASS, 4000, "positions")
    assert (request.gate, request.verdict, request.n, request.unit) == (
        "request_certificate_greedy", Verdict.PASS, 100, "requests",
    )  # fmt: skip
    assert request.high is not None
    assert 0.03 < request.high <= 0.05


def test_before_that_it_says_how_many_more() -> None:
    request = gate(Greedy(), context(QUICK), [CLEAN] * 40, "request_certificate_greedy")
    assert (request.verdict, request.reason) == (Verdict.INCONCLUSIVE, "not_yet")
    assert request.needed is not None
    assert gate(Greedy(), context(QUICK), [CLEAN] * (40 + request.needed), "request_certificate_greedy").verdict is Verdict.PASS
    assert (
        gate(Greedy(), context(QUICK), [CLEAN] * (39 + request.needed), "request_certificate_greedy").verdict
        is Verdict.INCONCLUSIVE
    )


def test_too_few_baseline_positions_are_no_data() -> None:
    found = gate(Greedy(), context(Gates()), [CLEAN] * 100)
    assert (found.verdict, found.reason) == (Verdict.NO_DATA, "too_few_baseline_positions")
    assert "5000" in found.sentence


def test_faults_on_one_per_cent_of_tokens_kill_soon() -> None:
    """One per cent of 96-token answers; 8.5 requests by the floor alone, at most twice that with the baseline's consent."""
    rng, asked = np.random.default_rng(2), []
    for _ in range(40):
        pairs = [gap_pair(np.where(rng.random(96) < 0.01, 2.0, 0.0).tolist(), [0.0] * 96) for _ in range(40)]
        crossings = (n for n in range(1, 41) if fold_value(pairs[:n]) >= log_budget(0.01))
        asked.append(next(crossings, 99))
    assert float(np.median(asked)) <= 17


def fold_value(pairs: list[Pair]) -> float:
    where = context(QUICK)
    values = np.sum([Greedy().increments(where, p) for p in pairs], axis=0)
    return Greedy().log_e(where, values)["greedy_gap"]


def test_near_ties_of_an_honest_engine_do_not_kill() -> None:
    """200 attempts of 50 requests whose arms both break the floor a hundredfold."""
    rng, killed = np.random.default_rng(3), 0
    where, part = context(QUICK), Greedy()
    arms = {True: [2.0] + [0.0] * 39, False: [0.0] * 40}
    kinds = {(c, b): part.increments(where, gap_pair(arms[c], arms[b])) for c in arms for b in arms}
    for _ in range(200):
        values, peak = np.zeros(len(part.names(where))), 0.0
        for candidate, baseline in (rng.random((50, 2)) < 40 * 2e-3).tolist():
            values = values + kinds[candidate, baseline]
            peak = max(peak, part.log_e(where, values)["greedy_gap"])
        killed += peak >= log_budget(0.01)
    assert killed <= 2 + 4


def test_a_noisy_baseline_is_an_error() -> None:
    for name in ("gap_certificate", "request_certificate_greedy"):
        found = gate(Greedy(), context(QUICK), [NOISY] * 60, name)
        assert (found.verdict, found.reason) == (Verdict.ERROR, "noise_floor")


def test_one_bad_baseline_request_is_no_permanent_error() -> None:
    early = [gap_pair([0.0] * 40, [2.0] * 40)] + [CLEAN] * 110
    for name in ("gap_certificate", "request_certificate_greedy"):
        for count in (1, 2, 111):
            assert gate(Greedy(), context(QUICK), early[:count], name).verdict is not Verdict.ERROR
        assert gate(Greedy(), context(QUICK), early, name).verdict is Verdict.PASS
    noisy = [NOISY] * 20
    assert gate(Greedy(), context(QUICK), noisy).verdict is Verdict.ERROR
    assert gate(Greedy(), context(QUICK), noisy + [CLEAN] * 400).verdict is Verdict.PASS


def test_violations_are_proven_above_the_rates() -> None:
    pairs = [BAD] * 30
    assert gate(Greedy(), context(QUICK), pairs).reason == "above_rate"
    assert gate(Greedy(), context(QUICK), pairs, "request_certificate_greedy").verdict is Verdict.FAIL
    assert fold(Greedy(), context(QUICK), pairs).peaks["greedy_gap"] > log_budget(1e-6)


def test_calibrating_requests_count_for_the_kill_only() -> None:
    where = context(QUICK, calibrated=False)
    sums = fold(Greedy(), where, [BAD] * 12)
    assert sums.peaks["greedy_gap"] > log_budget(0.01)
    assert sums["certified_positions"] == sums["certified_requests"] == 0
    assert {g.reason for g in Greedy().assess(where, sums)} == {"calibrating"}


def test_exact_rows_take_the_small_threshold() -> None:
    small = gap_pair([0.01] * 3, [0.0] * 3)
    assert fold(Greedy(), context(QUICK), [small])["events"] == 0
    assert fold(Greedy(), context(QUICK, exact_rows=True), [small])["events"] == 3


def test_a_gap_that_is_no_number_is_a_violation_and_a_gap_at_the_threshold_is_none() -> None:
    sums = fold(Greedy(), context(QUICK), [gap_pair([math.nan, 0.5, -1e-3], [0.0] * 3)])
    assert sums["events"] == 1


def test_sampled_requests_and_rare_greedy_ones_have_no_gate() -> None:
    sampled = gap_pair([9.0] * 40, [0.0] * 40, Stratum.SAMPLED)
    where = context(QUICK)
    sums = fold(Greedy(), where, [sampled] * 30)
    assert sums["positions"] == 0
    assert Greedy().assess(where, sums) == []
    assert Greedy().assess(where, fold(Greedy(), where, [sampled] * 30 + [BAD])) == []
    assert Greedy().assess(where, fold(Greedy(), where, [])) == []


def test_failed_arms_alone_are_no_data() -> None:
    failed = pair(stratum=Stratum.GREEDY, candidate=generation(error="boom"))
    assert [g.verdict for g in Greedy().assess(context(QUICK), fold(Greedy(), context(QUICK), [failed] * 9))] == [
        Verdict.NO_DATA
    ] * 2


@pytest.mark.parametrize(
    ("key", "rate"),
    [("greedy_gap", 2e-5), ("gap.below", 5e-3), ("gap.above", 5e-3), ("gap.request.below", 0.05), ("gap.request.above", 0.05)],
)
def test_no_process_gains_under_its_null(key: str, rate: float) -> None:
    clean, bad, other = (gap_pair([c], [b]) for c, b in ((0.0, 0.0), (2.0, 0.0), (0.0, 2.0)))
    outcomes = [(1 - 2 * rate, clean), (rate, bad), (rate, other)]
    assert expectation(Greedy(), context(QUICK), key, outcomes, 6) <= 1 + 1e-12
    for floor, noise in (("gap.floor", 5e-3), ("gap.request.floor", 0.05)):
        assert expectation(Greedy(), context(QUICK), floor, [(1 - noise, clean), (noise, other)], 6) <= 1 + 1e-12
    assert expectation(Greedy(), context(QUICK), "gap.request.floor", [(0.8, clean), (0.2, other)], 6) > 1.01
