"""E-processes on counts: exact expectation over all counts, and the budgets that the specification names."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from canary.stats.bounded import log_budget
from canary.stats.rates import (
    ALTERNATIVE_RATES,
    LOG_FLOOR,
    clean_needed,
    rate_above,
    rate_below,
    rate_upper,
    sign_above,
    sign_needed,
)


def mean_e(log_e: Callable[[int], float], n: int, p: float) -> float:
    """E[e] after n chances at probability p; counts are sufficient, so the sum over counts is the sum over all sequences."""
    log_terms = [float(binom.logpmf(k, n, p)) + log_e(k) for k in range(n + 1)]
    return sum(math.exp(t) for t in log_terms)


@pytest.mark.parametrize("n", [1, 2, 5, 40, 300])
@pytest.mark.parametrize("rate", [2e-5, 1e-4, 1e-3, 0.05])
def test_rate_processes_do_not_gain_under_their_null(n: int, rate: float) -> None:
    for share in (0.0, 0.5, 1.0):
        assert mean_e(lambda k: rate_above(k, n, rate), n, share * rate) <= 1 + 1e-9
    for share in (1.0, 2.0, 10.0):
        assert mean_e(lambda k: rate_below(k, n, rate), n, min(share * rate, 1.0)) <= 1 + 1e-9
    assert mean_e(lambda k: rate_above(k, n, rate), n, 3 * rate) > 1
    assert mean_e(lambda k: rate_below(k, n, rate), n, 0.2 * rate) > 1


@pytest.mark.parametrize("n", [1, 2, 7, 50, 200])
def test_the_sign_process_does_not_gain_under_its_null(n: int) -> None:
    for p in (0.5, 0.45, 0.2, 0.0):
        assert mean_e(lambda k: sign_above(k, n - k), n, p) <= 1 + 1e-12
    assert mean_e(lambda k: sign_above(k, n - k), n, 0.6) > 1


@pytest.mark.parametrize(
    ("process", "p"),
    [
        (lambda k, n: rate_above(k, n, 1e-3), 1e-3),
        (lambda k, n: rate_below(k, n, 0.05), 0.05),
        (lambda k, n: sign_above(k, n - k), 0.5),
    ],
)
def test_one_step_from_any_state_does_not_gain(process: Callable[[int, int], float], p: float) -> None:
    for n in (0, 1, 3, 10, 40):
        for k in range(n + 1):
            now, hit, miss = (math.exp(process(*at)) for at in ((k, n), (k + 1, n + 1), (k, n + 1)))
            assert p * hit + (1 - p) * miss <= now * (1 + 1e-9)


def test_a_planted_process_that_forgets_to_pay_for_misses_is_caught() -> None:
    def planted(k: int) -> float:
        return float(np.log(np.mean([(r / 1e-3) ** k for r in ALTERNATIVE_RATES if r > 1e-3])))

    assert mean_e(planted, 20, 1e-3) > 1.5


@pytest.mark.parametrize(("rate", "named"), [(1e-3, 4605), (5e-3, 921), (0.01, 461), (0.05, 90)])
def test_clean_chances_to_a_certificate_are_near_the_named_number(rate: float, named: int) -> None:
    needed = clean_needed(0, 0, rate, 0.01)
    assert named <= needed + 1 <= 1.12 * named
    assert rate_below(0, needed, rate) >= log_budget(0.01) > rate_below(0, needed - 1, rate)
    after_one = clean_needed(1, 1, rate, 0.01)
    assert needed < after_one < 3 * needed
    assert rate_below(1, 1 + after_one, rate) >= log_budget(0.01)


def test_false_alarms_of_the_kill_side_stay_in_their_budget() -> None:
    """400 runs of 30,000 positions exactly at the floor, looked at after every 30: at most 1 % may cross."""
    rng = np.random.default_rng(3)
    crossed = 0
    for _ in range(400):
        hits = np.cumsum(rng.binomial(30, 1e-4, size=1000))
        worth_a_look = np.flatnonzero(np.diff(hits, prepend=0))
        crossed += any(rate_above(hits[i], 30 * (i + 1), 1e-4) >= log_budget(0.01) for i in worth_a_look)
    assert crossed <= 4 + 3 * 2


def test_false_certificates_at_the_margin_stay_in_their_budget() -> None:
    """400 runs exactly at 1 %: at most 1 % may certify."""
    rng = np.random.default_rng(4)
    certified = 0
    for _ in range(400):
        hits = np.cumsum(rng.random(2000) < 0.01)
        certified += any(rate_below(hits[n], n + 1, 0.01) >= log_budget(0.01) for n in range(440, 2000, 20))
    assert certified <= 4 + 3 * 2


def test_the_upper_bound_of_a_rate_is_what_the_certificate_excludes() -> None:
    assert rate_upper(0, 10, 0.01) < 0.45
    for hits, total in ((0, 1000), (3, 5000), (40, 4000)):
        bound = rate_upper(hits, total, 0.01)
        assert bound > hits / total
        assert rate_below(hits, total, bound) >= log_budget(0.01) > rate_below(hits, total, bound / 1.002)
    assert rate_upper(10, 10, 0.01) == 1.0


def test_a_sign_test_needs_nine_straight_wins() -> None:
    assert sign_above(8, 0) < log_budget(0.01) <= sign_above(9, 0)
    assert sign_needed(0, 0, 0.01) is None
    assert sign_needed(5, 5, 0.01) is None
    assert sign_needed(9, 0, 0.01) == 0
    more = sign_needed(14, 6, 0.01)
    assert more is not None
    assert sign_above(14 + 0.7 * 2 * more, 6 + 0.3 * 2 * more) >= log_budget(0.01)


def test_hopeless_counts_give_a_finite_log() -> None:
    assert sign_above(0, 5000) == LOG_FLOOR
    assert rate_above(0, 1e9, 1e-3) == LOG_FLOOR
    assert rate_below(5000, 5000, 1e-3) == LOG_FLOOR


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0, math.nan])
def test_a_rate_out_of_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="between 0"):
        rate_above(0, 1, rate)


def test_more_events_than_chances_are_refused() -> None:
    with pytest.raises(ValueError, match="2 events out of 1"):
        rate_below(2, 1, 0.1)
