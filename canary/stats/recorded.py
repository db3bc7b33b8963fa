"""Live failures at full against the baseline's own earlier rate: an absolute bound, since no baseline is left to compare with.

It never learns from what is seen at full: the bound is frozen by the first candidate request there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from canary.stats.bounded import log_budget, log_mixed
from canary.stats.part import Vector

# Alternatives, as multiples of the null's odds of a failure; an even mixture of them.
WORSE = (1.15, 1.3, 1.6, 2.0, 3.0, 5.0, 10.0, 30.0)
BETTER = (0.001, *(1 / factor for factor in WORSE))
PRECISION = 1e-6  # of the bound, which is rounded up


def log_odds_bets(failures: float | Vector, requests: float | Vector, rate: float, factors: tuple[float, ...]) -> float:
    """Log of the even mixture of Bernoulli likelihood ratios of odds f r / (1 - r) against odds r / (1 - r).

    With f > 1 an e-process against "the conditional probabilities of a failure so far have a mean of at most r", with f < 1
    against "of at least r". They need not be equal: f^x / (1 - p + p f) has mean 1 where the probability is p, and
    log(1 - p + p f) is concave in p, so by Jensen's inequality n times its value at the mean is at least their sum (as the
    sub-Bernoulli process of Howard et al., 1810.08240). A rate that moves with the hour of the day breaks neither side.

    Args:
        failures: of the requests, each 0 or 1; arrays of counts give an array.
        rate: r, between 0 and 1.
    """
    f = np.array(factors)
    logs = np.multiply.outer(failures, np.log(f)) - np.multiply.outer(requests, np.log1p(rate * (f - 1)))
    return log_mixed(logs, np.full(len(f), 1 / len(f)))


def upper_bound(failures: float, requests: float, alpha: float) -> float:
    """Anytime upper confidence bound of a mean failure probability: the bets on `BETTER` exclude all above it; 1 if nothing.

    Every such bet grows with the rate that it is set against, so bisection finds the one place where the mixture crosses.
    """
    low, high = (failures / requests if requests else 0.0), 1.0
    if log_odds_bets(failures, requests, high, BETTER) < log_budget(alpha):
        return 1.0
    while high - low > PRECISION:
        middle = (low + high) / 2
        if log_odds_bets(failures, requests, middle, BETTER) >= log_budget(alpha):
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True, slots=True)
class Recorded:
    """One kind of failure, on the baseline before full and on the candidate at full.

    Args:
        earlier_requests, earlier_failures: of the baseline, in all earlier stages of the attempt.
        bound: upper confidence bound of its failure probability there; None until the first candidate request at full.
        requests, failures: of the candidate at full.
        peak: largest log wealth so far against "at most the bound and the margin"; Ville's inequality is about this.
    """

    earlier_requests: int = 0
    earlier_failures: int = 0
    bound: float | None = None
    requests: int = 0
    failures: int = 0
    peak: float = 0.0

    def add_baseline(self, failed: bool) -> Recorded:
        """One more request of the baseline before full; nothing once the bound is frozen."""
        if self.bound is not None:
            return self
        return replace(self, earlier_requests=self.earlier_requests + 1, earlier_failures=self.earlier_failures + failed)

    def add_candidate(self, failed: bool, margin: float, alpha: float) -> Recorded:
        """One more request of the candidate at full.

        Args:
            margin: excess over the bound that is still allowed.
            alpha: of this gate at full; half of it is the bound's and half the bets' (a union bound).
        """
        bound = upper_bound(self.earlier_failures, self.earlier_requests, alpha / 2) if self.bound is None else self.bound
        found = replace(self, bound=bound, requests=self.requests + 1, failures=self.failures + failed)
        return replace(found, peak=max(self.peak, found.log_above(margin)))

    def log_above(self, margin: float) -> float:
        """Log wealth now of "the candidate's failure probability is above the bound and the margin"."""
        if self.bound is None or self.bound + margin >= 1:
            return 0.0
        return log_odds_bets(self.failures, self.requests, self.bound + margin, WORSE)

    def proven(self, alpha: float) -> bool:
        """Whether the excess is proven, at the bets' half of alpha."""
        return self.peak >= log_budget(alpha / 2)

    @property
    def earlier_rate(self) -> float:
        """The baseline's share of failures; not a number before its first request."""
        return self.earlier_failures / self.earlier_requests if self.earlier_requests else math.nan

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Recorded:
        return cls(**found)
