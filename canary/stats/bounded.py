"""Bets on the mean of a bounded quantity: one e-process per claim, from sums of per-observation logarithms.

A claim is decided by the exact bets; the quadratic bound below only draws intervals, and must never decide a gate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import cast

import numpy as np

from canary.stats.part import Vector


def log_budget(alpha: float) -> float:
    """What an e-process's logarithm must reach: ln(1 / alpha) (Ville's inequality)."""
    return -math.log(alpha)


def log_mixture(logs: Vector, weights: Vector) -> Vector:
    """log of sum over the first axis of w_i exp(logs_i); safe for large and small values.

    Args:
        logs: [bets] or [bets, nulls].
        weights: positive, [bets].
    """
    top = logs.max(axis=0)
    return np.asarray(top + np.log(weights @ np.exp(logs - top)))


def log_mixed(logs: Vector, weights: Vector) -> float:
    """log of sum over the last axis of w_i exp(logs_i), the same bits for any number of leading rows.

    Args:
        logs: [..., bets].
        weights: positive, [bets].

    Returns:
        A float for [bets], else an array.
    """
    top = logs.max(axis=-1, keepdims=True)
    return cast(float, top[..., 0] + np.log((weights * np.exp(logs - top)).sum(axis=-1)))


def progress(log_e: float, alpha: float) -> float:
    """Share of the evidence gathered, 0 to 1."""
    return float(min(max(log_e / log_budget(alpha), 0.0), 1.0))


@cache
def _names(prefix: str, fractions: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(f"{prefix}.{f:g}" for f in fractions)


@dataclass(frozen=True)
class Bets:
    """A mixture of fixed bets; each stakes a fraction of the largest amount that cannot go bankrupt.

    Waudby-Smith and Ramdas, 2010.09686: prod(1 + lam * (X - m)) is an e-process for "E[X | past] <= m" as long as no factor can
    be negative; an average of e-processes is one.

    Args:
        fractions: stakes in (0, 1), one per bet.
        weights: of the mixture; they sum to 1.
    """

    fractions: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.fractions) != len(self.weights) or abs(sum(self.weights) - 1.0) > 1e-12:
            raise ValueError(f"weights {self.weights} must match the bets {self.fractions} and sum to 1")
        if not all(0 < f < 1 for f in self.fractions):
            raise ValueError(f"fractions {self.fractions} must lie between 0 and 1")

    @classmethod
    def even(cls, *fractions: float) -> Bets:
        """The mixture with equal weights."""
        return cls(fractions, (1 / len(fractions),) * len(fractions))

    def names(self, prefix: str) -> tuple[str, ...]:
        """Stable names of the bets' sums."""
        return _names(prefix, self.fractions)

    def above(self, x: float | Vector, mean: float, low: float) -> Vector:
        """Log factors that grow if the mean is above `mean`.

        Args:
            x: the observation, at least `low`; or several, [n].
            mean: the null is "the conditional mean is at most this".
            low: smallest value that x can take, below `mean`.

        Returns:
            One log factor per bet, [bets], or [n, bets].

        Raises:
            ValueError: an x is below `low`, so that a factor could be negative.
        """
        return self._factors((x - mean) / (mean - low), x)

    def below(self, x: float | Vector, mean: float, high: float) -> Vector:
        """Log factors that grow if the mean is below `mean`; x is at most `high`. Otherwise as `above`."""
        return self._factors((mean - x) / (high - mean), x)

    def _factors(self, payoff: float | Vector, x: float | Vector) -> Vector:
        inside = payoff >= -1 - 1e-9
        if not (inside.all() if isinstance(inside, np.ndarray) else inside):
            raise ValueError(f"observation {x} is outside its bounds")
        if isinstance(payoff, np.ndarray):
            return np.asarray(np.log1p(np.maximum(payoff, -1.0)[..., None] * self._stakes))
        return np.asarray(np.log1p(self._stakes * max(payoff, -1.0)))

    @cached_property
    def _stakes(self) -> Vector:
        return np.asarray(self.fractions)

    def log_e(self, log_wealth: Vector) -> float:
        """Log of the mixture's wealth, from the summed log factors [..., bets]; an array where there are leading axes."""
        return log_mixed(log_wealth, np.asarray(self.weights))

    def needed(self, log_wealth: Vector, n: float, alpha: float) -> int | None:
        """Further observations until the e-process crosses, if each adds what one has added on average so far.

        Solves w_i * exp(S_i * (n + m) / n) = 1 / alpha for the fastest bet; None while no bet grows.
        """
        if self.log_e(log_wealth) >= log_budget(alpha):
            return 0
        growing = np.flatnonzero(log_wealth > 0)
        if n <= 0 or not growing.size:
            return None
        goal = log_budget(alpha) - np.log(np.asarray(self.weights)[growing])
        more = (goal - log_wealth[growing]) / (log_wealth[growing] / n)
        return max(1, math.ceil(float(more.min())))

    def quadratic(self, first: Vector, second: Vector) -> Vector:
        """A lower bound of the mixture's log wealth from two sums, for any number of nulls at once.

        For payoffs xi >= -1 and 0 <= f < 1: log(1 + f xi) >= f xi - (-log(1 - f) - f) xi^2 (Fan, Grama and Liu, 2015, used in
        2010.09686, appendix). So the bound is below an e-process, and rejecting by it is valid.

        Args:
            first: sums of xi, [nulls].
            second: sums of xi squared, [nulls].
        """
        f = np.asarray(self.fractions)[:, None]  # [bets, 1]
        log_wealth = f * first + (np.log1p(-f) + f) * second  # [bets, nulls]
        return log_mixture(log_wealth, np.asarray(self.weights))


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums of an observation and of its square."""

    n: float
    total: float
    squares: float


def upper_bound(bets: Bets, moments: Moments, low: float, high: float, alpha: float, points: int = 720) -> float:
    """Anytime upper confidence bound of a mean in [low, high], by inversion over a fixed grid of nulls "mean >= m".

    The grid ends at nine tenths of the range: nearer to `high` the payoffs (m - x) / (high - m) grow so large that the quadratic
    bound falls, however clear the case. A mean that is not excluded there has the bound `high`. A grid point
    counts as excluded only if all above it are, so that the bound is valid for means between grid points too.
    """
    grid = np.linspace(low, low + 0.9 * (high - low), points + 1)[1:]
    scale = high - grid
    first = (moments.n * grid - moments.total) / scale
    second = (moments.n * grid**2 - 2 * grid * moments.total + moments.squares) / scale**2
    excluded = bets.quadratic(first, second) >= log_budget(alpha)
    return lowest_excluded(grid, excluded, high)


def lower_bound(bets: Bets, moments: Moments, low: float, high: float, alpha: float, points: int = 720) -> float:
    """The mirror of `upper_bound`."""
    mirrored = Moments(moments.n, -moments.total, moments.squares)
    return -upper_bound(bets, mirrored, -high, -low, alpha, points)


def counted_interval(
    bets: Bets, outcomes: Sequence[tuple[float, float]], low: float, high: float, alpha: float
) -> tuple[float, float]:
    """Anytime bounds of the mean of a quantity that takes few values, each at alpha, by inversion of the exact bets.

    Args:
        outcomes: (value, how often it was seen).
        low, high: smallest and largest value; the grid of nulls has 1,000 steps between them.
    """
    grid = np.linspace(low, high, 1001)[1:-1]
    fractions, weights = np.array(bets.fractions)[:, None], np.array(bets.weights)
    above, below = np.zeros((len(weights), len(grid))), np.zeros((len(weights), len(grid)))  # [bets, nulls]
    for value, count in outcomes:
        above += count * np.log1p(fractions * (value - grid) / (grid - low))
        below += count * np.log1p(fractions * (grid - value) / (high - grid))
    budget = log_budget(alpha)
    lowest = highest_excluded(grid, log_mixture(above, weights) >= budget, low)
    return lowest, lowest_excluded(grid, log_mixture(below, weights) >= budget, high)


def lowest_excluded(grid: Vector, excluded: np.ndarray, otherwise: float) -> float:
    """The lowest point of a rising grid from which on every point is excluded; `otherwise` if the last one is not."""
    kept = np.flatnonzero(~excluded)
    first = 0 if not kept.size else int(kept[-1]) + 1
    return float(grid[first]) if first < len(grid) else otherwise


def highest_excluded(grid: Vector, excluded: np.ndarray, otherwise: float) -> float:
    """The highest point of a rising grid up to which every point is excluded; `otherwise` if the first one is not."""
    return -lowest_excluded(-grid[::-1], excluded[::-1], -otherwise)
