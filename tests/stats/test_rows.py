"""Row gate and outlier gate: certified where rows are the reference's, refuted where not, silent where the baseline is noisy."""

import math
from dataclasses import replace

import numpy as np
import pytest

from canary.domain.evidence import GateRole, Verdict
from canary.domain.pairs import Arm, Columns, Pair
from canary.domain.policy import Gates
from canary.domain.traffic import Stratum
from canary.stats.bounded import log_budget
from canary.stats.rows import Outliers, RowGate
from tests.stats.make import columns, context, expectation, fold, gate, generation, pair, rows

QUICK = Gates(row_margin=0.02, outlier_rate=5e-3, noise_floor_positions=1000)


def scored_pair(candidate: list[float], baseline: list[float], stratum: Stratum = Stratum.SAMPLED) -> Pair:
    return pair(
        stratum=stratum,
        candidate=generation(scored=rows(candidate)),
        baseline=generation(Arm.BASELINE, scored=rows(baseline), k=0),
    )


def real_pairs(count: int, seed: int, excess: float = 0.0, stratum: Stratum = Stratum.SAMPLED) -> list[Pair]:
    """Distances as on a small 16-bit model: mean .0175, p99 near .06 (statistics 3.6)."""
    rng = np.random.default_rng(seed)
    draw = rng.gamma(1.7, 0.0103, size=(count, 2, 40))
    return [scored_pair((d[0] + excess).tolist(), d[1].tolist(), stratum) for d in draw]


def test_row_bets_do_not_gain_at_the_margin() -> None:
    where = context(QUICK)
    low, high = scored_pair([0.0], [0.2]), scored_pair([0.2], [0.0])  # x = -tau and +tau
    up = (0.02 + 0.2) / 0.4
    for key in ("row_gate.sampled.below", "row_gate.sampled.above"):
        for length in (1, 3):
            assert expectation(RowGate(), where, key, [(1 - up, low), (up, high)], length) <= 1 + 1e-6  # float32 columns
    assert expectation(RowGate(), where, "row_gate.sampled.below", [(1 - up + 0.05, low), (up - 0.05, high)], 3) > 1.01
    assert expectation(RowGate(), where, "row_gate.sampled.above", [(1 - up - 0.05, low), (up + 0.05, high)], 3) > 1.01


@pytest.mark.parametrize(("margin", "named"), [(0.005, 182), (0.02, 44)])
def test_noiseless_rows_certify_near_the_named_number(margin: float, named: int) -> None:
    where = context(Gates(row_margin=margin))
    one = scored_pair([0.01] * 5, [0.01] * 5)
    step = RowGate().log_e(where, RowGate().increments(where, one))
    found = gate(RowGate(), where, [one])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.needed is not None
    assert named <= found.needed + 1 <= 1.25 * named
    assert step["row_gate.sampled.below"] > 0
    done = gate(RowGate(), where, [one] * (found.needed + 1))
    assert (done.verdict, done.reason, done.role) == (Verdict.PASS, "certified", GateRole.EQUIVALENCE)
    assert (done.needed, done.progress, done.n) == (0, 1.0, found.needed + 1)
    assert done.high is not None
    assert done.high <= margin
    assert done.details["noise_floor"] == pytest.approx(0.01)
    assert "certified below" in done.sentence


def test_a_16_bit_model_certifies_in_spite_of_its_noise() -> None:
    found = gate(RowGate(), context(QUICK), real_pairs(70, seed=1))
    assert found.verdict is Verdict.PASS
    assert found.value is not None
    assert abs(found.value) < 0.002
    assert 0.015 < float(str(found.details["noise_floor"])) < 0.02


def test_an_excess_beyond_the_margin_is_proven() -> None:
    found = gate(RowGate(), context(QUICK), real_pairs(300, seed=2, excess=0.06))
    assert (found.verdict, found.reason) == (Verdict.FAIL, "rows_differ")
    assert found.low is not None
    assert found.low >= 0.02


def test_an_excess_at_the_margin_is_certified_in_at_most_its_budget() -> None:
    """200 runs of 100 requests exactly at the margin, noise two-valued and wide."""
    where, rng, certified = context(QUICK), np.random.default_rng(6), 0
    part = RowGate()
    added = [part.increments(where, scored_pair([c], [b])) for c, b in ((0.12, 0.0), (0.0, 0.08))]
    for _ in range(200):
        values, up = np.zeros_like(added[0]), rng.random(100) < 0.5
        crossed = False
        for high in up:
            values = values + added[0 if high else 1]
            crossed |= part.log_e(where, values)["row_gate.sampled.below"] >= log_budget(0.01)
        certified += crossed
    assert certified <= 2 + 4


def test_exact_rows_use_the_absolute_mean_and_the_smaller_margin() -> None:
    loose, strict = context(replace(QUICK, row_margin=0.02), exact_rows=True), context(Gates(row_margin=0.004), exact_rows=True)
    assert (RowGate().margin(loose), RowGate().margin(strict)) == (0.01, 0.004)
    same_noise = [scored_pair([0.05] * 3, [0.05] * 3)] * 400
    assert gate(RowGate(), loose, same_noise).verdict is Verdict.FAIL
    found = gate(RowGate(), loose, [scored_pair([1e-7] * 3, [0.0] * 3)] * 110)
    assert found.verdict is Verdict.PASS
    assert found.details["absolute"] is True


def test_one_huge_distance_is_clipped() -> None:
    where = context(QUICK)
    plain, huge = ([0.0] * 40, [0.0] * 39 + [1.0])
    assert fold(RowGate(), where, [scored_pair(huge, plain)])["sampled.x"] == pytest.approx(0.2 / 40)
    assert fold(RowGate(), where, [scored_pair([math.nan] * 2, [0.0] * 2)])["sampled.x"] == pytest.approx(0.2)


def test_calibrating_requests_enter_no_certificate_but_the_kill_side() -> None:
    calibrating, bad = context(QUICK, calibrated=False), scored_pair([0.9] * 40, [0.0] * 40)
    sums = fold(RowGate(), calibrating, [bad])
    assert sums["sampled.n"] == 0
    assert sums["sampled.requests"] == 1
    outliers = fold(Outliers(), calibrating, [bad] * 20)
    assert outliers["sampled.certified_positions"] == 0
    assert outliers.peaks["row_outliers"] > log_budget(0.001)
    for part in (RowGate(), Outliers()):
        found = gate(part, calibrating, [bad])
        assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "calibrating")


def test_each_stratum_certifies_on_its_own_and_the_worst_speaks() -> None:
    pairs = real_pairs(90, seed=3) + real_pairs(30, seed=4, stratum=Stratum.GREEDY)
    found = gate(RowGate(), context(QUICK), pairs)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.sentence.startswith("In the greedy stratum: the mean row distance")
    strata = found.details["strata"]
    assert isinstance(strata, dict)
    assert (strata["sampled"]["verdict"], strata["greedy"]["verdict"]) == ("pass", "inconclusive")
    assert found.needed == strata["greedy"]["needed"]
    assert found.details["untested"] == []


def test_a_stratum_below_five_per_cent_is_listed_as_untested() -> None:
    found = gate(RowGate(), context(QUICK), real_pairs(100, seed=5) + real_pairs(5, seed=5, stratum=Stratum.GREEDY))
    assert found.verdict is Verdict.PASS
    assert found.details["untested"] == ["greedy"]


@pytest.mark.parametrize("part", [RowGate(), Outliers()])
def test_no_data_never_passes(part: RowGate | Outliers) -> None:
    where = context(QUICK)
    failed = pair(candidate=generation(error="out of memory"), baseline=generation(Arm.BASELINE, scored=rows([0.0]), k=0))
    unscored = pair()
    for pairs in ([], [failed] * 50, [unscored] * 50):
        found = gate(part, where, pairs)
        assert found.verdict is Verdict.NO_DATA
        assert found.n == 0


@pytest.mark.parametrize("bad", [columns(logit_gap=[0.0]), Columns(2, {"row_tv": b"\0\0\0\0"})])
def test_rows_that_do_not_fit_are_refused(bad: Columns) -> None:
    broken = pair(candidate=generation(scored=bad), baseline=generation(Arm.BASELINE, scored=rows([0.0]), k=0))
    with pytest.raises(ValueError, match="row_tv"):
        RowGate().increments(context(), broken)


def test_outliers_certify_after_the_named_number_of_clean_positions() -> None:
    one = scored_pair([0.01] * 40, [0.01] * 40)
    rare = context(replace(QUICK, noise_floor_positions=900))
    found = gate(Outliers(), rare, [one] * 23)
    assert (found.verdict, found.n, found.unit) == (Verdict.INCONCLUSIVE, 920, "positions")
    assert found.needed is not None
    assert 0 < found.needed < 80
    more = [one] * 26
    assert gate(Outliers(), context(QUICK), more).verdict is Verdict.PASS
    assert gate(Outliers(), context(replace(QUICK, noise_floor_positions=5000)), more).reason == "too_few_baseline_positions"


BROKEN, FINE = scored_pair([0.9] * 40, [0.01] * 40), scored_pair([0.01] * 40, [0.01] * 40)


def test_clean_requests_certify_both_claims_of_both_strata() -> None:
    where = context(replace(QUICK, request_margin=0.05))
    pairs = [scored_pair([0.01] * 40, [0.01] * 40, stratum) for stratum in Stratum for _ in range(100)]
    position, request = Outliers().assess(where, fold(Outliers(), where, pairs))
    assert (position.gate, position.verdict, position.n, position.unit) == ("outliers", Verdict.PASS, 4000, "positions")
    assert (request.gate, request.verdict, request.n, request.unit) == ("outlier_requests", Verdict.PASS, 100, "requests")
    assert (request.role, request.threshold) == (GateRole.EQUIVALENCE, 0.05)
    assert "certified to have a conditional rate at each position of less than 0.005" in position.sentence
    assert "requests with a row farther than 0.2 from the reference" in request.sentence
    strata = request.details["strata"]
    assert isinstance(strata, dict)
    assert set(strata) == {"sampled", "greedy"}


def test_whole_bad_requests_are_not_certified_away() -> None:
    """100 routes of 600 requests, 1 % of them wholly bad: positions look rare, requests are exactly at their margin."""
    where, part, rng = context(QUICK), Outliers(), np.random.default_rng(10)
    fine, broken = part.increments(where, FINE), part.increments(where, BROKEN)
    certified = dict.fromkeys(("below", "request.below"), 0)
    for _ in range(100):
        values, reached = np.zeros_like(fine), dict.fromkeys(certified, False)
        for n, bad in enumerate((rng.random(600) < 0.01).tolist(), start=1):
            values = values + (broken if bad else fine)
            if n >= 20 and n % 10 == 0:
                log_e = part.log_e(where, values)
                reached = {k: r or log_e[f"outliers.sampled.{k}"] >= log_budget(0.01) for k, r in reached.items()}
        certified = {k: n + reached[k] for k, n in certified.items()}
    assert certified["below"] >= 60
    assert certified["request.below"] <= 1 + 3


def test_one_bad_request_keeps_the_request_claim_open() -> None:
    where = context(replace(QUICK, request_margin=0.05))
    pairs = [FINE] * 60 + [BROKEN] + [FINE] * 40
    request = gate(Outliers(), where, pairs, "outlier_requests")
    assert (request.verdict, request.reason) == (Verdict.INCONCLUSIVE, "not_yet")
    assert request.needed is not None
    assert gate(Outliers(), where, pairs + [FINE] * request.needed, "outlier_requests").verdict is Verdict.PASS


def test_one_bad_baseline_request_is_no_permanent_error() -> None:
    where = context(replace(QUICK, request_margin=0.05))
    pairs = [scored_pair([0.01] * 40, [0.9] * 40)] + [FINE] * 110
    for name in ("outliers", "outlier_requests"):
        for count in (1, 2, 10):
            assert gate(Outliers(), where, pairs[:count], name).verdict is not Verdict.ERROR
        assert gate(Outliers(), where, pairs, name).verdict is Verdict.PASS


def test_a_noisy_baseline_is_an_error_and_does_not_kill_the_candidate() -> None:
    rng = np.random.default_rng(8)
    noisy = [scored_pair(*np.where(rng.random((2, 40)) < 0.05, 0.3, 0.01).tolist()) for _ in range(300)]
    sums = fold(Outliers(), context(QUICK), noisy)
    for found in Outliers().assess(context(QUICK), sums):
        assert (found.verdict, found.reason, found.needed) == (Verdict.ERROR, "noise_floor", None)
    assert sums.peaks["row_outliers"] < log_budget(0.1)


def test_outlier_rows_of_the_candidate_alone_kill_within_a_dozen_requests() -> None:
    where = context(QUICK)
    stale = [scored_pair([0.01] * 20 + [0.85] * 20, [0.01] * 40)] * 12
    sums = fold(Outliers(), where, stale)
    assert sums.peaks["row_outliers"] >= log_budget(0.01) + math.log(5)
    assert gate(Outliers(), where, [*stale, scored_pair([0.01], [0.01])]).reason == "above_rate"


def test_one_bad_request_does_not_kill() -> None:
    pairs = [scored_pair([0.9] * 40, [0.01] * 40)] + [scored_pair([0.01] * 40, [0.01] * 40)] * 20
    assert fold(Outliers(), context(QUICK), pairs).peaks["row_outliers"] < log_budget(0.1)


def test_outliers_past_the_end_of_the_other_text_are_not_compared_by_sign() -> None:
    late = scored_pair([0.01] * 10 + [0.9] * 30, [0.01] * 10)
    sums = fold(Outliers(), context(QUICK), [late])
    assert (sums["only_candidate"], sums["sampled.events"]) == (0, 30)


def test_the_outlier_kill_does_not_gain_under_its_null() -> None:
    where = context(QUICK)
    clean, bad, other = scored_pair([0.0], [0.0]), scored_pair([0.9], [0.0]), scored_pair([0.0], [0.9])
    outcomes = [(1 - 2e-4, clean), (1e-4, bad), (1e-4, other)]
    assert expectation(Outliers(), where, "row_outliers", outcomes, 5) <= 1 + 1e-12
    for rate, key in ((5e-3, "outliers.sampled.below"), (5e-3, "outliers.sampled.above")):
        assert expectation(Outliers(), where, key, [(1 - rate, clean), (rate, bad)], 5) <= 1 + 1e-12
    for rate, key in ((0.01, "outliers.sampled.request.below"), (0.01, "outliers.sampled.request.above")):
        assert expectation(Outliers(), where, key, [(1 - rate, clean), (rate, bad)], 5) <= 1 + 1e-12
    for rate, key in ((5e-3, "outliers.sampled.floor"), (0.01, "outliers.sampled.request.floor")):
        assert expectation(Outliers(), where, key, [(1 - rate, clean), (rate, other)], 5) <= 1 + 1e-12
