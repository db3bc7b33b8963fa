"""The change detector: no sooner than its run length on exact engines, soon after a fault, and confirmed from zero."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from canary.domain.budget import CONFIRM_ALPHA, run_length
from canary.domain.evidence import GateRole, Verdict
from canary.domain.facts import CHANGE_ALARM, CHANGE_GATE
from canary.domain.pairs import Arm
from canary.domain.policy import Gates
from canary.domain.traffic import Stratum
from canary.stats import events, watch
from canary.stats.greedy import Greedy
from canary.stats.rows import Outliers
from canary.stats.suspects import SUSPECTS
from canary.stats.watch import CONFIRM_REQUESTS, Watch, advance, judge, threshold
from tests.stats.changes import delays
from tests.stats.make import context, generation, pair, rows

BETS = np.array([-1.0, -0.5, 0.5, 1.0])  # log-likelihood ratios of shifted normals
WEIGHTS = np.full(4, 0.25)
GOAL = -np.log(CONFIRM_ALPHA)


def bets(z: np.ndarray) -> np.ndarray:
    """Logs of exact likelihood ratios, [pairs, bets]: mean 1 under a standard normal z."""
    return z[:, None] * BETS - BETS**2 / 2


def play(found: Watch, z: np.ndarray, limit: float, first: int = 0) -> Watch:
    """Advance over observations; the kill e-value is the even mixture of the bets since the alarm."""
    logs = bets(z)
    sums = np.add.accumulate(logs, axis=0)

    def log_kill(values: np.ndarray) -> np.ndarray:
        return np.log(np.exp(values).mean(axis=1))

    return advance(found, limit, logs, WEIGHTS, list(range(first, first + len(z))), sums, log_kill)


def quiet() -> Watch:
    return Watch(np.zeros(4))


def run_of(limit: float, rng: np.random.Generator, change: int | None = None, shift: float = 1.0) -> int:
    """Observations until the first alarm."""
    state, seen = quiet(), 0
    while True:
        z = rng.standard_normal(64)
        if change is not None:
            z = z + shift * (np.arange(seen, seen + 64) >= change)
        state = play(state, z, limit, seen)
        if state.alarm is not None:
            return state.alarm.ordinal + 1
        seen += 64


def test_the_statistic_grows_by_at_most_one_a_request_in_the_mean() -> None:
    """Enumerated over three requests of a fair coin, with bets that are exact for it."""
    total = np.zeros(2)
    for flips in np.ndindex(2, 2, 2):
        logs = np.log([[1.6 if flip else 0.4, 0.7 if flip else 1.3] for flip in flips])
        found = advance(Watch(np.zeros(2)), 1e9, logs, np.full(2, 0.5), [0, 1, 2], np.zeros((3, 1)), lambda v: v[:, 0])
        total += found.statistic / 8
    assert total == pytest.approx([3.0, 3.0], abs=1e-12)


@pytest.mark.parametrize("limit", [20.0, 100.0])
def test_the_mean_run_length_on_exact_engines_is_at_least_the_threshold(limit: float) -> None:
    rng = np.random.default_rng(int(limit))
    lengths = np.array([run_of(limit, rng) for _ in range(150)])
    assert lengths.mean() >= limit  # the overshoot makes it about half as long again


def test_a_change_after_a_long_clean_history_is_seen_at_once() -> None:
    rng = np.random.default_rng(5)
    delays = [run_of(1e4, rng, change=400) - 400 for _ in range(40)]
    assert sum(d > 0 for d in delays) >= 39  # at most one false alarm in 40 x 400 requests
    # The growth rate is 1/2 a request: ln(4 * 1e4) / .5 = 21; a plain e-process would first have to win back 200 nats.
    assert np.median(delays) <= 2 * 21


def test_bits_do_not_depend_on_the_split() -> None:
    rng = np.random.default_rng(8)
    z = rng.standard_normal(1500) + 0.8 * (np.arange(1500) >= 300) * (np.arange(1500) < 320)
    logs = bets(z)
    sums = np.add.accumulate(logs, axis=0)

    def through(cuts: list[int]) -> str:
        state = quiet()
        for low, high in zip([0, *cuts], [*cuts, len(z)], strict=True):
            ordinals = list(range(low, high))
            kill = lambda values: np.log(np.exp(values).mean(axis=1))  # noqa: E731
            state = advance(state, 1e3, logs[low:high], WEIGHTS, ordinals, sums[low:high], kill)
            state = Watch.from_json(json.loads(json.dumps(state.to_json())))
        return json.dumps(state.to_json())

    whole = through([])
    assert json.loads(whole)["num_alarms"] >= 1
    for seed in range(8):
        assert through(sorted(random.Random(seed).sample(range(1500), 40))) == whole


def test_an_alarm_is_confirmed_from_zero_and_stays_confirmed() -> None:
    state = play(quiet(), np.full(60, 1.5), 1e4)
    assert state.alarm is not None
    alarm = state.alarm
    assert (state.num_alarms, alarm.confirmed) == (1, True)
    assert alarm.peak >= GOAL
    assert alarm.ordinal + alarm.pairs < 59  # nothing after the crossing is read
    assert not state.statistic.any()
    assert play(state, np.zeros(50), 1e4, 60) is state


def test_an_unconfirmed_alarm_closes_and_the_detector_starts_again() -> None:
    state = play(quiet(), np.array([4.0]), 5.0)
    assert state.alarm is not None
    before = CONFIRM_REQUESTS - state.alarm.pairs
    z = np.zeros(before - 1)
    nearly = play(state, z, 5.0, 1)
    assert nearly.alarm is not None
    assert (nearly.alarm.pairs, nearly.alarm.confirmed) == (CONFIRM_REQUESTS - 1, False)
    closed = play(nearly, np.zeros(1), 5.0, 1 + len(z))
    assert closed.alarm is None
    again, fresh = play(closed, np.zeros(3), 5.0, 2 + len(z)), play(quiet(), np.zeros(3), 5.0)
    assert again.statistic.tolist() == fresh.statistic.tolist()
    assert again.num_alarms == 1


def test_numbers_stay_finite() -> None:
    huge = advance(quiet(), 1e305, np.full((5, 4), 1e4), WEIGHTS, list(range(5)), np.zeros((5, 1)), np.ravel)
    assert np.isfinite(huge.statistic).all()
    tiny = advance(huge, 1e305, np.full((5, 4), -1e4), WEIGHTS, list(range(5)), np.zeros((5, 1)), np.ravel)
    assert (tiny.statistic >= 0).all()
    json.dumps(tiny.to_json(), allow_nan=False)


def test_the_threshold_is_ten_years_of_traffic() -> None:
    assert threshold(context(Gates(watch_requests_per_day=1000))) == run_length(1000) == 3_650_000


def test_the_gate() -> None:
    where, state = context(), quiet()
    assert judge(where, state, WEIGHTS, 0, None).verdict is Verdict.NO_DATA
    found = judge(where, state, WEIGHTS, 70, None)
    assert (found.gate, found.role, found.verdict, found.reason) == (CHANGE_GATE, GateRole.SAFETY, Verdict.PASS, "no_change")
    alarm = watch.Alarm(412, np.zeros(1), pairs=30, peak=2.0)
    found = judge(where, Watch(np.zeros(4), 1, alarm), WEIGHTS, 500, SUSPECTS["residual"])
    assert (found.verdict, found.reason, found.needed) == (Verdict.INCONCLUSIVE, CHANGE_ALARM, CONFIRM_REQUESTS - 30)
    assert "near request 412" in found.sentence
    assert SUSPECTS["residual"].words in found.sentence
    confirmed = replace(alarm, peak=8.0, confirmed=True)
    found = judge(where, Watch(np.zeros(4), 1, confirmed), WEIGHTS, 500, None)
    assert (found.verdict, found.reason) == (Verdict.FAIL, "change_confirmed")
    json.dumps(found.details)


def test_a_wrong_residual_after_a_clean_history_is_seen_within_twice_the_published_delay() -> None:
    torch.set_num_threads(1)
    found = delays("resample_from_target", runs=3, clean=60, most=2 * 9, seed=21)
    assert sum(bool(d) for d in found) >= 2, found


@pytest.mark.parametrize(("rate", "candidate", "baseline"), [(1e-3, 0.5, 0.0), (0.5, 0.3, 0.3)])
def test_bets_on_rare_events_are_fair_if_they_are_rare_or_as_common_in_the_baseline(
    rate: float, candidate: float, baseline: float
) -> None:
    """Enumerated over one request of three tokens: events at the null's rate with any signs, or many with even signs."""
    null, mean = 1e-3, np.zeros(len(events.REQUEST_WEIGHTS))
    for hits in range(4):
        at_rate = math.comb(3, hits) * rate**hits * (1 - rate) ** (3 - hits)
        for win, loss, share in ((1, 0, candidate), (0, 1, baseline), (0, 0, 1 - candidate - baseline)):
            arrays = [np.array([float(v)]) for v in (hits, 3, win, loss)]
            mean += at_rate * share * np.exp(events.log_request_bets(arrays[0], arrays[1], null, arrays[2], arrays[3])[0])
    assert (mean <= 1 + 1e-12).all()


@pytest.mark.parametrize("part", [Greedy(), Outliers()])
def test_rows_that_go_wrong_after_a_clean_history_are_seen_in_a_few_requests(part: Greedy | Outliers) -> None:
    where = context()
    stratum = Stratum.GREEDY if isinstance(part, Greedy) else Stratum.SAMPLED
    fine, bad = rows([0.01] * 60, [0.0] * 60), rows([0.01] * 50 + [0.6] * 10, [0.0] * 50 + [3.0] * 10)
    clean, spoilt = (
        pair(stratum=stratum, baseline=generation(Arm.BASELINE, scored=fine, k=0), candidate=generation(scored=scored))
        for scored in (fine, bad)
    )
    table = np.stack([part.increments(where, one) for one in [clean] * 300 + [spoilt] * 40])
    logs, weights = part.log_request_bets(where, table), part.request_weights(where)
    state = advance(Watch(np.zeros(len(weights))), 1e6, logs, weights, list(range(340)), np.zeros((340, 1)), np.ravel)
    assert state.alarm is not None
    assert 300 <= state.alarm.ordinal < 335
