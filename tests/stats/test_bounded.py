"""Bets on a bounded mean: no bet gains under its null, the quadratic bound stays below, intervals cover."""

import math
from itertools import product

import numpy as np
import pytest

from canary.stats.bounded import Bets, Moments, highest_excluded, log_budget, lower_bound, lowest_excluded, upper_bound

BETS = Bets((0.1, 0.5, 0.95), (0.2, 0.3, 0.5))


def values_with_mean(mean: float) -> list[tuple[list[float], list[float]]]:
    """(values, probabilities) in [-1, 1] with that mean: two-point, three-point and skewed."""
    up = (mean + 1) / 2
    return [([-1.0, 1.0], [1 - up, up]), ([-1.0, mean, 1.0], [(1 - up) / 2, 0.5, up / 2]), ([mean], [1.0])]


@pytest.mark.parametrize("mean", [-0.9, -0.1, 0.0, 0.3, 0.8])
def test_no_bet_gains_when_the_mean_is_at_the_boundary(mean: float) -> None:
    for values, probabilities in values_with_mean(mean):
        for length in (1, 2, 4):
            above = below = 0.0
            for chosen in product(range(len(values)), repeat=length):
                p = math.prod(probabilities[i] for i in chosen)
                above += p * math.exp(BETS.log_e(sum(BETS.above(values[i], mean, -1.0) for i in chosen)))
                below += p * math.exp(BETS.log_e(sum(BETS.below(values[i], mean, 1.0) for i in chosen)))
            assert above <= 1 + 1e-12
            assert below <= 1 + 1e-12


def test_inside_the_null_a_bet_loses_and_outside_it_gains() -> None:
    def step(mean: float) -> float:
        up = (mean + 1) / 2
        return up * math.exp(BETS.log_e(BETS.above(1.0, 0.0, -1.0))) + (1 - up) * math.exp(
            BETS.log_e(BETS.above(-1.0, 0.0, -1.0))
        )

    assert step(-0.1) < 1 < step(0.1)


def test_a_planted_bet_with_the_wrong_bound_is_caught() -> None:
    with pytest.raises(ValueError, match="outside its bounds"):
        BETS.above(-2.0, 0.0, -1.0)
    with pytest.raises(ValueError, match="outside its bounds"):
        BETS.above(math.nan, 0.0, -1.0)
    wrong_null = 0.5 * sum(math.exp(BETS.log_e(BETS.above(x, -0.2, -1.0))) for x in (1.0, -1.0))
    assert wrong_null > 1.01  # the enumeration above would fail on it


@pytest.mark.parametrize(
    ("fractions", "weights"), [((0.5,), (0.9,)), ((0.5, 1.0), (0.5, 0.5)), ((0.5,), (0.5, 0.5)), ((0.0,), (1.0,))]
)
def test_a_mixture_that_is_none_is_refused(fractions: tuple[float, ...], weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        Bets(fractions, weights)


def test_the_quadratic_bound_never_exceeds_the_exact_wealth() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        xi = rng.uniform(-1, rng.choice([0.1, 1, 20]), size=rng.integers(1, 30))
        exact = BETS.log_e(np.log1p(np.outer(xi, BETS.fractions)).sum(axis=0))
        bound = float(BETS.quadratic(np.array([xi.sum()]), np.array([(xi**2).sum()]))[0])
        assert bound <= exact + 1e-9


def test_the_quadratic_bound_is_close_where_payoffs_are_small() -> None:
    xi = np.full(100, 0.03)
    exact = BETS.log_e(np.log1p(np.outer(xi, BETS.fractions)).sum(axis=0))
    assert float(BETS.quadratic(np.array([3.0]), np.array([0.09]))[0]) > 0.9 * exact


def test_needed_is_what_it_takes_when_nothing_changes() -> None:
    step = BETS.above(0.2, 0.0, -1.0)
    first = BETS.needed(10 * step, 10, 0.01)
    assert first is not None
    assert BETS.log_e((10 + first) * step) >= log_budget(0.01)
    assert BETS.log_e((10 + first // 2) * step) < log_budget(0.01)
    assert BETS.needed((10 + first) * step, 10 + first, 0.01) == 0
    assert BETS.needed(-step, 1, 0.01) is None
    assert BETS.needed(0 * step, 0, 0.01) is None


def test_intervals_cover_at_every_look() -> None:
    """200 runs of 400 looks at alpha .05 a side; skewed values, mean .02."""
    rng = np.random.default_rng(11)
    bets, missed = Bets.even(0.1, 0.3, 0.6, 0.95), 0
    for _ in range(200):
        x = np.where(rng.random(400) < 0.1, 0.2, 0.0)
        out = False
        for n in (5, 20, 50, 100, 200, 400):
            moments = Moments(n, float(x[:n].sum()), float((x[:n] ** 2).sum()))
            out |= not lower_bound(bets, moments, -0.2, 0.2, 0.05) <= 0.02 <= upper_bound(bets, moments, -0.2, 0.2, 0.05)
        missed += out
    assert missed <= 20


def test_bounds_close_in_and_mirror() -> None:
    many, few = Moments(4000, 40.0, 2.0), Moments(40, 0.4, 0.02)
    assert upper_bound(BETS, many, -1, 1, 0.01) < upper_bound(BETS, few, -1, 1, 0.01)
    assert upper_bound(BETS, Moments(1, 0.0, 0.0), -1, 1, 0.01) == 1
    mirrored = Moments(4000, -40.0, 2.0)
    assert lower_bound(BETS, mirrored, -1, 1, 0.01) == -upper_bound(BETS, many, -1, 1, 0.01)


def test_a_hole_in_what_is_excluded_counts_as_kept() -> None:
    grid = np.array([1.0, 2.0, 3.0, 4.0])
    assert lowest_excluded(grid, np.array([True, False, True, True]), 9.0) == 3.0
    assert lowest_excluded(grid, np.array([True, True, True, False]), 9.0) == 9.0
    assert highest_excluded(grid, np.array([True, True, False, True]), 0.0) == 2.0
    assert highest_excluded(grid, np.array([False, True, True, True]), 0.0) == 0.0
