"""Distances by position bucket: counted where they belong, refuted where a replay has outliers, and merely shown otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from canary.domain.evidence import Verdict
from canary.domain.pairs import Arm, Pair
from canary.domain.policy import Gates
from canary.domain.traffic import Stratum
from canary.stats import late
from canary.stats.batch import Batch
from canary.stats.bounded import log_budget
from canary.stats.rows import RowGate
from canary.stats.scored import Scored
from tests.stats.make import columns, context, expectation, fold, gate, generation, pair, rows

QUICK = Gates(row_margin=0.02, outlier_rate=5e-3, noise_floor_positions=1000)


def replayed(tv: list[float], replay: list[float] | None, stratum: Stratum = Stratum.SAMPLED) -> Pair:
    """A pair whose candidate has these distances; the baseline's are all .01."""
    more = {} if replay is None else {"replay_tv": replay}
    scored = columns(row_tv=tv, logit_gap=[0.0] * len(tv), **more)
    return pair(
        stratum=stratum,
        candidate=generation(scored=scored),
        baseline=generation(Arm.BASELINE, scored=rows([0.01] * 4), k=0),
    )


def added(one: Pair) -> dict[str, float]:
    where = context(QUICK)
    return dict(zip(late.NAMES, late.increments(where, Scored(Batch(where, [one])))[0].tolist(), strict=True))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 64, 65, 256, 257, 700])
def test_every_position_is_counted_once_and_in_its_bucket(length: int) -> None:
    values = (np.arange(length) % 7) / 100
    found = added(replayed(values.tolist(), values.tolist()))
    edges = (*late.STARTS, 10**9)
    for bucket, low, high in zip(late.BUCKETS, edges, edges[1:], strict=False):
        inside = values[low:high]
        for what in ("candidate", "replayed"):
            assert found[f"{bucket}.{what}_rows"] == len(inside)
            assert found[f"{bucket}.{what}_tv"] == pytest.approx(inside.sum(), abs=1e-6)
    assert late.BUCKETS == ("0-15", "16-63", "64-255", "256+")


def test_without_a_replay_there_is_nothing_to_refute() -> None:
    where = context(QUICK)
    sums = fold(RowGate(), where, [replayed([0.01] * 40, None)] * 90)
    assert sums.peaks["row_gate.sampled.replay"] == pytest.approx(0.0)
    (found,) = RowGate().assess(where, sums)
    assert found.verdict is Verdict.PASS
    shown = found.details["by_position"]
    assert isinstance(shown, dict)
    assert set(shown) == {"0-15", "16-63"}
    assert shown["16-63"]["replay_distance"] is None
    assert shown["0-15"]["noise_floor"] == pytest.approx(0.01)


def test_a_fault_late_in_long_answers_fails_although_the_mean_is_small() -> None:
    """Stale keys from position 256 on in one answer of ten: the mean distance stays far below the margin."""
    where = context(QUICK)
    fine, stale = [0.01] * 300, [0.01] * 260 + [0.85] * 40
    pairs = [replayed(fine, None)] * 9 + [replayed(fine, stale)]
    found = gate(RowGate(), where, pairs * 9)
    assert (found.verdict, found.reason) == (Verdict.FAIL, "replay_differs")
    assert "at positions 256+" in found.sentence
    assert found.low is not None
    assert found.low < 0.02
    shown = found.details["by_position"]
    assert isinstance(shown, dict)
    assert shown["256+"]["replay_outliers"] == 360
    assert shown["64-255"]["replay_outliers"] == 0
    assert shown["64-255"]["replay_outlier_rate_below"] < 0.01


def test_16_bit_noise_of_a_replay_is_shown_and_never_refutes() -> None:
    rng = np.random.default_rng(1)
    pairs = [replayed(rng.gamma(1.7, 0.0103, 60).tolist(), rng.gamma(1.7, 0.0103, 60).tolist()) for _ in range(90)]
    found = gate(RowGate(), context(QUICK), pairs)
    assert found.reason != "replay_differs"
    shown = found.details["by_position"]
    assert isinstance(shown, dict)
    assert shown["0-15"]["replay_distance"] == pytest.approx(0.0175, abs=0.003)


def test_exact_rows_have_no_noise_to_allow_for() -> None:
    small = [0.0] * 20 + [0.01] * 20
    pairs = [replayed([1e-7] * 40, small)] * 3
    assert late.tau(context(QUICK, exact_rows=True)) == 1e-3
    assert fold(RowGate(), context(QUICK, exact_rows=True), pairs).peaks["row_gate.sampled.replay"] > log_budget(0.01)
    assert fold(RowGate(), context(QUICK), pairs).peaks["row_gate.sampled.replay"] < log_budget(0.5)


def test_a_row_that_is_not_a_number_is_an_outlier() -> None:
    assert added(replayed([0.01] * 2, [0.01, math.nan]))["0-15.replayed_events"] == 1.0


def test_the_replay_bet_does_not_gain_at_the_rate() -> None:
    where, key, rate = context(QUICK), "row_gate.sampled.replay", QUICK.outlier_rate
    clean, bad = replayed([0.01], [0.01]), replayed([0.01], [0.9])
    assert expectation(RowGate(), where, key, [(1 - rate, clean), (rate, bad)], 4) <= 1 + 1e-12
    assert expectation(RowGate(), where, key, [(1 - 4 * rate, clean), (4 * rate, bad)], 4) > 1.001


def test_each_stratum_has_its_own_buckets() -> None:
    where = context(QUICK)
    sums = fold(RowGate(), where, [replayed([0.01] * 20, [0.9] * 20, Stratum.GREEDY)])
    assert sums["greedy.16-63.replayed_events"] == 4
    assert sums["sampled.16-63.replayed_rows"] == 0
    assert sums.peaks["row_gate.sampled.replay"] == pytest.approx(0.0)
    assert sums.peaks["row_gate.greedy.replay"] > log_budget(0.01)
