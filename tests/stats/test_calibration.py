"""The calibration record: what it measures, that its bound is one, and that it survives text unchanged."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from canary.domain.errors import UsageError
from canary.domain.pairs import ALTERNATIVES, TRACE_COLUMNS, Columns, DrafterKind, Pair
from canary.domain.traffic import Stratum
from canary.stats.bets import one_sample_distance
from canary.stats.calibration import calibrate, from_json, smoothed_unigram, to_json, upper_bound
from tests.stats.world import VOCAB, Engine, World, context_of, pair_of

CONTEXT = context_of(DrafterKind.DENSE)


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    run = Engine(World.make(), DrafterKind.DENSE).run(6, 3, want_tv=True)
    return [pair_of(run, i, i, (1, 2, 2, 3 + i)) for i in range(6)]


def with_column(pair: Pair, name: str, values: np.ndarray) -> Pair:
    trace = pair.candidate.trace
    assert trace is not None
    data = {**trace.data, name: values.astype(TRACE_COLUMNS[name][0]).tobytes()}
    return replace(pair, candidate=replace(pair.candidate, trace=Columns(trace.num_tokens, data)))


def test_distances_are_token_means_and_bounds_lie_above(pairs: list[Pair]) -> None:
    record = calibrate(pairs, CONTEXT)
    traced = [np.frombuffer(p.candidate.trace.data["tv"], "<f4").reshape(-1, 10) for p in pairs]  # type: ignore[union-attr]
    assert record.tv["draft"] == pytest.approx(np.concatenate(traced)[:, 0].mean())
    assert set(record.tv) == set(record.tv_upper)
    assert all(record.tv[k] <= record.tv_upper[k] <= 1 for k in record.tv)
    assert record.num_requests == 6
    assert record.tv["unfiltered"] == 0
    assert 0.3 < record.tv["unigram"] < 1


def test_the_unigram_comes_from_the_baseline_alone(pairs: list[Pair]) -> None:
    record = calibrate(pairs, CONTEXT)
    assert set(record.unigram) == {1, 2, 3, 4, 5, 6, 7, 8}
    unseen = VOCAB - len(record.unigram)
    assert sum(map(math.exp, record.unigram.values())) + unseen * math.exp(record.unigram_floor) == pytest.approx(1, abs=1e-12)
    assert record.unigram[2] > record.unigram[1] > record.unigram[3] > record.unigram_floor


def test_a_round_trip_through_text_is_exact_and_hashes_tell_records_apart(pairs: list[Pair]) -> None:
    record = calibrate(pairs, CONTEXT)
    again = from_json(json.loads(json.dumps(to_json(record))))
    assert again == record
    assert calibrate(pairs, CONTEXT).hash == record.hash
    assert calibrate(pairs[:5], CONTEXT).hash != record.hash


def test_an_altered_record_is_refused(pairs: list[Pair]) -> None:
    body = to_json(calibrate(pairs, CONTEXT))
    with pytest.raises(UsageError, match="hash"):
        from_json({**body, "tv": {**body["tv"], "draft": 0.5}})
    with pytest.raises(UsageError, match="unigram_floor"):
        from_json({k: v for k, v in body.items() if k != "unigram_floor"})


def test_tombstones_failures_and_greedy_pairs_are_left_out(pairs: list[Pair]) -> None:
    failed = replace(pairs[0], error="set aside")
    greedy = replace(pairs[1], stratum=Stratum.GREEDY)
    record = calibrate([None, failed, greedy, *pairs[2:]], CONTEXT)
    assert (record.num_requests, record.num_ordinals) == (4, 7)
    assert replace(record, hash="", num_ordinals=4) == replace(calibrate(pairs[2:], CONTEXT), hash="")


def test_without_a_sampled_request_nothing_is_known() -> None:
    record = calibrate([None, None], CONTEXT)
    assert record.num_requests == 0
    assert set(record.tv_upper.values()) == {1.0}
    assert (record.unigram, record.unigram_floor) == ({}, -math.log(VOCAB))


@pytest.mark.parametrize(("ordinals", "required"), [(20, 10), (200, 10), (19, 10), (10, 5), (4, 2), (1, 1), (0, 1)])
def test_strengths_need_ten_requests_or_half_of_a_short_calibration(ordinals: int, required: int) -> None:
    assert calibrate([None] * ordinals, CONTEXT).num_required == required


@pytest.mark.parametrize("kind", list(DrafterKind))
def test_a_one_sample_distance_estimates_the_distance_of_the_rows(kind: DrafterKind) -> None:
    run = Engine(World.make(), kind).run(25, 8, want_tv=True)
    ratios = run.columns["log_ratio"].astype(np.float64).reshape(-1, len(ALTERNATIVES))
    rows = run.columns["tv"].astype(np.float64).reshape(-1, len(ALTERNATIVES))
    for at, name in enumerate(ALTERNATIVES):
        found = one_sample_distance(ratios[:, at])
        error = 4 * float(np.std(found - rows[:, at])) / math.sqrt(len(found))
        assert float(found.mean()) == pytest.approx(float(rows[:, at].mean()), abs=error + 1e-6), name


def test_a_trace_without_distances_is_refused(pairs: list[Pair]) -> None:
    with pytest.raises(UsageError, match="without distances"):
        calibrate([with_column(pairs[0], "tv", np.zeros((96, 10)))], CONTEXT)


@pytest.mark.parametrize("p", [0.02, 0.1, 0.3, 0.7])
def test_the_upper_bound_covers_by_enumeration(p: float) -> None:
    n, alpha, missed = 8, 0.05, 0.0
    for outcome in product((0.0, 1.0), repeat=n):
        if upper_bound(np.array(outcome), alpha) < p:
            missed += p ** sum(outcome) * (1 - p) ** (n - sum(outcome))
    assert missed <= alpha


def test_the_upper_bound_of_twenty_zeros_is_that_of_the_largest_stake() -> None:
    # With six stakes, one of which bets everything: (1 - m)^-20 / 6 + less reaches 100 a little below m = .28.
    bound = upper_bound(np.zeros(20), 0.01)
    assert 1 - (1 / 600) ** (1 / 20) > bound > 1 - 0.01 ** (1 / 20)
    assert upper_bound(np.zeros(0), 0.01) == 1.0
    assert upper_bound(np.ones(20), 0.01) == 1.0
    assert upper_bound(np.full(4000, 0.01), 0.01) < 0.02


def test_smoothing_gives_everything_to_the_vocabulary_without_tokens() -> None:
    assert smoothed_unigram([], 8) == ({}, -math.log(8))
