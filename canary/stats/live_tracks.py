"""Bets on live traffic: the mean of one bounded quantity against one threshold, from both sides, in a few numbers.

Variants are compared in blocks of the stream, never across the whole of it: what moves both variants, such as load, an outage
or another hour of the day, must not count as a difference between them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from canary.stats.bounded import Bets, Moments, lower_bound, upper_bound

LIVE_BETS = Bets.even(0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.95)
NOTHING = (0.0,) * len(LIVE_BETS.fractions)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a quantity lies and what its mean is compared with: low < threshold < high."""

    low: float
    high: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Track:
    """What is kept of one quantity.

    Waudby-Smith and Ramdas, 2010.09686, eq. (22) ff.: prod(1 + lam (X - m)) is an e-process for "every conditional mean is at
    most m"; here against the threshold from either side. The interval inverts the same bets over a grid of means, by the
    quadratic bound of `Bets`, and is a confidence sequence.

    Args:
        n, total, squares: observations, their sum and sum of squares.
        above, below: summed log factors of each bet towards a mean above or below the threshold.
        peak_above, peak_below: largest log wealth of each mixture so far; Ville's inequality is about these.
    """

    n: int = 0
    total: float = 0.0
    squares: float = 0.0
    above: tuple[float, ...] = NOTHING
    below: tuple[float, ...] = NOTHING
    peak_above: float = 0.0
    peak_below: float = 0.0

    def add(self, x: float, bounds: Bounds) -> Track:
        """One more observation.

        Raises:
            ValueError: it is outside its bounds.
        """
        above = np.asarray(self.above) + LIVE_BETS.above(x, bounds.threshold, bounds.low)
        below = np.asarray(self.below) + LIVE_BETS.below(x, bounds.threshold, bounds.high)
        return Track(
            self.n + 1,
            self.total + x,
            self.squares + x * x,
            tuple(above.tolist()),
            tuple(below.tolist()),
            max(self.peak_above, float(LIVE_BETS.log_e(above))),
            max(self.peak_below, float(LIVE_BETS.log_e(below))),
        )

    @property
    def mean(self) -> float | None:
        return self.total / self.n if self.n else None

    @property
    def log_above(self) -> float:
        """Log wealth now of "the mean is above the threshold"."""
        return float(LIVE_BETS.log_e(np.asarray(self.above)))

    @property
    def log_below(self) -> float:
        return float(LIVE_BETS.log_e(np.asarray(self.below)))

    def interval(self, bounds: Bounds, alpha: float) -> tuple[float, float]:
        """Anytime bounds of the mean, each at alpha."""
        moments = Moments(self.n, self.total, self.squares)
        low, high = bounds.low, bounds.high
        return lower_bound(LIVE_BETS, moments, low, high, alpha), upper_bound(LIVE_BETS, moments, low, high, alpha)

    def needed(self, side: str, alpha: float) -> int | None:
        """Further observations like those so far until a side crosses; None while it does not grow."""
        wealth = np.asarray(self.above if side == "above" else self.below)
        return LIVE_BETS.needed(wealth, self.n, alpha)

    def to_json(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Track:
        return cls(**{**found, "above": tuple(found["above"]), "below": tuple(found["below"])})


@dataclass(frozen=True, slots=True)
class Block:
    """The stretch of the stream since the last comparison, by arm; it ends with the observation that makes it hold both arms.

    Which arm serves a request is settled by a hash before it is answered, so where a block ends says nothing about the values in
    it, and the difference of its two means has the difference of the arms' means as its conditional mean (blocks as in Turner, Ly
    and Grünwald, 2106.02693). With one unit in twenty on the candidate, a block sets one candidate's value against the mean of
    about twenty of the baseline's.

    Args:
        counts, sums: of values by arm, baseline first.
    """

    counts: tuple[int, int] = (0, 0)
    sums: tuple[float, float] = (0.0, 0.0)

    def add(self, candidate: bool, x: float) -> tuple[Block, float | None]:
        """The block with one more value, and the candidate's mean minus the baseline's where that completes it."""
        at = int(candidate)
        counts, sums = list(self.counts), list(self.sums)
        counts[at] += 1
        sums[at] += x
        if not all(counts):
            return replace(self, counts=(counts[0], counts[1]), sums=(sums[0], sums[1])), None
        return Block(), sums[1] / counts[1] - sums[0] / counts[0]


@dataclass(frozen=True, slots=True)
class Centre:
    """Around what a quantity is clipped: the median of the baseline's first values, which are then forgotten.

    Values are clipped one by one and not block by block, so that two arms alike have differences of mean exactly 0, however
    skewed they are.
    """

    first: tuple[float, ...] = field(default=())
    value: float | None = None

    NEEDED = 20

    def add(self, x: float) -> Centre:
        """One more value of the baseline, while the centre is still open."""
        first = (*self.first, x)
        return Centre((), float(np.median(first))) if len(first) >= self.NEEDED else Centre(first)

    def clip(self, x: float, reach: float) -> float:
        """The value, at most `reach` away from the centre, as its distance from it."""
        assert self.value is not None
        return min(max(x - self.value, -reach), reach)
