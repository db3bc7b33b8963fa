"""The anytime interval of a ratio of sums: how much of one count per unit of another, with the request as the unit.

It draws intervals from five sums by a bound that is valid at every rate at once; it must never decide a gate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from canary.stats.bounded import Bets, highest_excluded, log_budget, lowest_excluded

CAP = 128  # a request with a larger denominator is scaled down to so much (statistics 4)
RATIO_BETS = Bets.even(0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.95)
GRID = np.arange(4, 197) / 200  # nulls of the interval; nearer to 0 or 1 no bet of the quadratic bound grows


@dataclass(frozen=True, slots=True)
class RatioMoments:
    """Sums over requests of a and d with 0 <= a <= d <= CAP, and of their products.

    Args:
        a, d: numerators and denominators, scaled alike.
        aa, ad, dd: sums of a^2, a * d and d^2.
    """

    a: float
    d: float
    aa: float
    ad: float
    dd: float

    @property
    def rate(self) -> float | None:
        """The ratio of the scaled sums; None without a denominator."""
        return self.a / self.d if self.d else None


def interval(moments: RatioMoments, alpha: float) -> tuple[float, float]:
    """Anytime bounds of the ratio, each at alpha, on `GRID`; 0 and 1 where nothing is excluded.

    At the null rate t the payoffs are (a - t d) / CAP over t (above) or over 1 - t (below): both at least -1 (statistics 4).
    """
    first = (moments.a - GRID * moments.d) / CAP
    second = (moments.aa - 2 * GRID * moments.ad + GRID**2 * moments.dd) / CAP**2
    above = RATIO_BETS.quadratic(first / GRID, second / GRID**2) >= log_budget(alpha)
    below = RATIO_BETS.quadratic(-first / (1 - GRID), second / (1 - GRID) ** 2) >= log_budget(alpha)
    low, high = highest_excluded(GRID, above, 0.0), lowest_excluded(GRID, below, 1.0)
    rate = moments.rate
    return (low, high) if rate is None else (min(low, rate), max(high, rate))
