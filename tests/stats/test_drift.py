"""Acceptance after promotion: fair bets by enumeration, a run length, power at one position, and the same bits in any split."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest

from canary.domain.errors import ConflictError
from canary.domain.evidence import GateRole, Source, Verdict
from canary.domain.facts import DRIFT_GATE
from canary.stats import drift_gate
from canary.stats.controlled import ControlledBattery, ControlledState
from canary.stats.drift import FALL_BETS, Drift, advance, cell_names, log_bets, since, weights
from canary.stats.reference import REFERENCE, WARM_UP, Reference, capped, gather
from canary.stats.state import State
from tests.stats.drafting import FALL, RATES, frozen, requests, run
from tests.stats.histories import record

LIMIT = 36_500_000.0  # ten years of 10,000 requests a day
K = len(RATES)


@pytest.mark.parametrize("share", [1.0, 1.1, 1.6])
@pytest.mark.parametrize("boundary", [0.05, 0.5, 0.9])
def test_bets_have_mean_at_most_one_wherever_a_request_keeps_its_rate(share: float, boundary: float) -> None:
    """Every request of up to three drafts and every count, whose mean is the boundary times the drafts, or more.

    How many drafts a request has may depend on how they end: only the mean of a - boundary * d counts.
    """
    rate, cap = min(1.0, boundary * share), 3.0
    mean = np.zeros(len(FALL_BETS.fractions))
    for drafts, weight in ((1, 0.2), (2, 0.3), (3, 0.5)):
        for flips in itertools.product((0, 1), repeat=drafts):
            chance = weight * np.prod([rate if flip else 1 - rate for flip in flips])
            a, d = np.array([[float(sum(flips))]]), np.array([float(drafts)])
            mean += chance * np.exp(log_bets(a, d, cap, np.array([boundary])))[0]
    assert (mean <= 1 + 1e-12).all()
    assert share > 1 or mean == pytest.approx(np.ones(len(mean)), abs=1e-12)


def test_bets_are_fair_for_requests_that_are_wholly_accepted_or_wholly_refused() -> None:
    """The unit is the request: nothing is asked of the draws within one. Long requests are scaled to the cap."""
    boundary, mean = np.array([0.4]), np.zeros(len(FALL_BETS.fractions))
    for drafts, weight in ((2.0, 0.5), (50.0, 0.5)):
        for accepted, chance in ((drafts, 0.4), (0.0, 0.6)):
            a, d = capped(np.array([[accepted]]), np.array([drafts]), 10.0)
            assert d[0] <= 10
            mean += weight * chance * np.exp(log_bets(a, d, 10.0, boundary))[0]
    assert mean == pytest.approx(np.ones(len(mean)), abs=1e-12)


def test_no_bet_can_go_bankrupt_and_a_cell_without_a_boundary_is_not_bet_on() -> None:
    found = log_bets(np.array([[7.0, 7.0], [0.0, 0.0]]), np.array([7.0, 7.0]), 7.0, np.array([0.9, 0.0])).reshape(2, 2, -1)
    assert np.isfinite(found).all()
    assert not found[:, 1].any()
    assert (found[0, 0] < 0).all()
    assert (found[1, 0] > 0).all()


def test_weights_sum_to_one() -> None:
    for k in (0, 1, 4, 16):
        assert weights(k).sum() == pytest.approx(1.0, abs=1e-12)
        assert len(weights(k)) == (k + 1) * len(FALL_BETS.fractions) == len(Drift.quiet(k).watch.statistic)
        assert Drift.quiet(k).num_cells == len(cell_names(k)) == k + 1


def test_the_reference_freezes_and_knows_its_error() -> None:
    found = frozen(np.random.default_rng(2))
    expected = 0.7 ** np.arange(1, K + 1)
    assert found.rates[1:] == pytest.approx(expected, abs=0.03)
    assert found.rates[0] == pytest.approx(found.rates[1:].mean())
    spread = np.std([frozen(np.random.default_rng(100 + at)).rates for at in range(40)], axis=0)
    assert found.errors == pytest.approx(spread, rel=0.4)
    assert (found.boundary(FALL) <= 0.9 * found.rates).all()
    assert (found.boundary(0.001) == np.maximum(found.rates - 3 * found.errors, 0)).all()  # never within its own error
    assert gather(found, *requests(np.random.default_rng(3), 5)) == (found, 0)


def exact(rates: np.ndarray) -> Reference:
    """A reference that knows the rates, [cells], without an error."""
    d, dd = 400 * 30.0, 400 * 900.0
    return Reference(rates * d, rates**2 * dd, rates * dd, WARM_UP + REFERENCE, WARM_UP * 30.0, d, dd)


def test_the_mean_run_length_is_at_least_the_threshold_where_every_rate_lies_at_its_boundary() -> None:
    """One conditional rate is a tenth lower, hence so is every position: the worst that has not fallen by more than a tenth."""
    by_position = 0.7 ** np.arange(1, K + 1)
    reference, limit, lengths = exact(np.array([by_position.mean(), *by_position])), 60.0, []
    assert reference.boundary(FALL)[1:] == pytest.approx(0.9 * by_position)
    for seed in range(200):
        rng, drift, at = np.random.default_rng(seed), Drift.quiet(K), 0
        while drift.watch.alarm is None and at < 40 * limit:
            drift = run(drift, reference, requests(rng, 100, (0.63, 0.7, 0.7, 0.7)), at, limit)
            at += 100
        lengths.append(drift.watch.alarm.ordinal + 1 if drift.watch.alarm else at)
    assert np.mean(lengths) >= limit


def test_a_reference_that_errs_does_not_shorten_the_run_length() -> None:
    """Every run has a reference of its own, of 400 requests; the rates are the true ones."""
    limit, lengths = 60.0, []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        reference, drift, at = frozen(rng), Drift.quiet(K), 0
        while drift.watch.alarm is None and at < 20 * limit:
            drift = run(drift, reference, requests(rng, 200), at, limit, fall=0.001)
            at += 200
        lengths.append(drift.watch.alarm.ordinal + 1 if drift.watch.alarm else at)
    assert np.mean(lengths) >= limit


def test_an_unchanged_engine_is_never_reported() -> None:
    """Twelve runs of 2,000 requests: at this threshold one alarm in 36.5 million is expected."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        assert run(Drift.quiet(K), frozen(rng), requests(rng, 2000), 0, LIMIT).watch.num_alarms == 0


# what happens -> (rates, position that is named, requests within which the alarm comes and is confirmed)
FALLS = {
    "third position alone": ((0.7, 0.7, 0.35, 0.7), 3, 600),
    "third position never": ((0.7, 0.7, 0.0, 0.7), 3, 250),
    "a fifth everywhere": ((0.56, 0.56, 0.56, 0.56), None, 500),
}


@pytest.mark.parametrize("name", FALLS)
def test_a_fall_after_a_clean_history_is_seen_named_and_confirmed(name: str) -> None:
    rates, position, most = FALLS[name]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        reference = frozen(rng)
        clean = run(Drift.quiet(K), reference, requests(rng, 1000), 0, LIMIT)
        assert clean.watch.alarm is None
        found = run(clean, reference, requests(rng, most, rates), 1000, LIMIT)
        assert found.watch.alarm is not None
        assert found.watch.alarm.confirmed
        assert found.watch.alarm.ordinal >= 1000
        assert position is None or since(found).leading == position


def test_bits_do_not_depend_on_the_split() -> None:
    rng = np.random.default_rng(4)
    first, later = requests(rng, 700), requests(rng, 500, (0.7, 0.7, 0.2, 0.7))
    accepted, drafts = (np.concatenate(both) for both in zip(first, later, strict=True))

    def through(cuts: list[int]) -> str:
        reference, drift = Reference.empty(K), Drift.quiet(K)
        for low, high in itertools.pairwise([0, *cuts, len(drafts)]):
            reference, taken = gather(reference, accepted[low:high], drafts[low:high])
            ordinals = list(range(low, high))[taken:]
            drift = advance(drift, reference, FALL, 1e4, accepted[low:high][taken:], drafts[low:high][taken:], ordinals)
            reference = Reference.from_json(json.loads(json.dumps(reference.to_json())))
            drift = Drift.from_json(json.loads(json.dumps(drift.to_json())))
        return json.dumps([reference.to_json(), drift.to_json()])

    whole = through([])
    assert json.loads(whole)[1]["watch"]["alarm"]["confirmed"]
    for seed in range(8):
        assert through(sorted(random.Random(seed).sample(range(1200), 30))) == whole


def test_the_gate() -> None:
    rng = np.random.default_rng(6)
    early, _ = gather(Reference.empty(K), *requests(rng, 100))
    found = drift_gate.shadow(FALL, LIMIT, early, Drift.quiet(K))
    assert (found.gate, found.role, found.source) == (DRIFT_GATE, GateRole.ECONOMY, Source.SHADOW)
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, drift_gate.SETTLING)
    assert found.needed == WARM_UP + REFERENCE - 100
    reference = frozen(rng)
    quiet = run(Drift.quiet(K), reference, requests(rng, 50), 0, LIMIT)
    found = drift_gate.shadow(FALL, LIMIT, reference, quiet)
    assert (found.verdict, found.reason, found.n, found.threshold) == (Verdict.PASS, "no_fall", 50, 0.9)
    broken = requests(rng, 400, (0.7, 0.7, 0.0, 0.7))
    at = next(n for n in range(1, 400) if run(quiet, reference, (broken[0][:n], broken[1][:n]), 50, LIMIT).watch.alarm)
    found = drift_gate.shadow(FALL, LIMIT, reference, run(quiet, reference, (broken[0][:at], broken[1][:at]), 50, LIMIT))
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "fall_alarm")
    found = drift_gate.shadow(FALL, LIMIT, reference, run(quiet, reference, broken, 50, LIMIT))
    assert (found.verdict, found.reason) == (Verdict.FAIL, "fall_confirmed")
    assert "at position 3" in found.sentence
    assert found.value == 0.0
    json.dumps(found.details, allow_nan=False)


def test_a_position_that_is_too_rare_is_listed_and_not_watched() -> None:
    rng = np.random.default_rng(7)
    reference = frozen(rng, (0.6, 0.002))
    assert reference.boundary(FALL)[2] == 0
    found = run(Drift.quiet(2), reference, requests(rng, 300, (0.6, 0.0)), 0, LIMIT)
    assert drift_gate.shadow(FALL, LIMIT, reference, found).details["not_watched"] == ["2"]


def test_the_fold_takes_what_the_pairs_with_drafts_accepted_and_keeps_it() -> None:
    found = record(40, seed=3)
    battery = ControlledBattery(found.context, asked=False)
    main = battery.main.fold(battery.main.start(), found.items)
    entered = [
        p.candidate.stats for p, item in zip(found.pairs, found.items, strict=True) if item.increments and not p.candidate.error
    ]
    drafting = [stats for stats in entered if stats.num_drafts]
    assert main.reference is not None
    assert main.reference.n == len(drafting) <= WARM_UP + REFERENCE
    assert main.reference.drafts == sum(stats.num_drafts for stats in drafting[:WARM_UP])
    late, cap = drafting[WARM_UP:], main.reference.cap
    expected = sum(s.accepted_per_position[2] * min(1.0, cap / s.num_drafts) for s in late)
    assert main.reference.a[3] == pytest.approx(expected)
    again = State.from_json(json.loads(json.dumps(main.to_json())))
    assert again.to_json() == main.to_json()
    gates = battery.assess(ControlledState(main, battery.control.start()))
    (gate,) = [g for g in gates if g.gate == DRIFT_GATE]
    assert (gate.reason, gate.needed) == ("settling", WARM_UP + REFERENCE - len(drafting))


def test_evidence_of_an_older_version_is_refused() -> None:
    with pytest.raises(ConflictError, match="version is not 3"):
        State.from_json({"version": 2})
