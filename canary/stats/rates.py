"""E-processes on counts: is a rate above or below a bound, and is one side of a comparison the more frequent?

Everything is a closed form of the counts, so the counts are the whole state; it never sees which request a count came from.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betaincc, betaln, xlog1py

from canary.stats.bounded import log_budget, log_mixture

LOG_FLOOR = -700.0  # below it a wealth is not representable, and no decision depends on it
ALTERNATIVE_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 0.9)
BELOW_SHARES = (0.001, 0.1, 0.3, 0.6)  # alternatives to a rate, as shares of it
BELOW_WEIGHTS = (0.7, 0.15, 0.1, 0.05)  # most of the bet is on "it never happens", the expected case


def rate_above(hits: float, total: float, rate: float) -> float:
    """Log of the e-process against "each event's conditional probability is at most `rate`".

    An even mixture of Bernoulli likelihood ratios (r1/r0)^hits ((1-r1)/(1-r0))^misses over fixed rates r1 > r0.

    Args:
        hits: events seen.
        total: chances there were.
        rate: r0, between 0 and .5.

    Raises:
        ValueError: the rate is outside its range.
    """
    _check(hits, total)
    if not 0 < rate < 0.5:
        raise ValueError(f"rate {rate} must lie between 0 and .5")
    r1 = np.array([r for r in ALTERNATIVE_RATES if r > 1.5 * rate])
    log_ratio = hits * np.log(r1 / rate) + (total - hits) * (np.log1p(-r1) - math.log1p(-rate))
    return max(float(log_mixture(log_ratio, np.full(len(r1), 1 / len(r1)))), LOG_FLOOR)


def rate_below(hits: float, total: float, rate: float) -> float:
    """Log of the e-process against "each event's conditional probability is at least `rate`": it certifies that it is below.

    A mixture of Bernoulli likelihood ratios towards `BELOW_SHARES` of the rate; clean data cross at about ln(1/alpha)/rate.
    """
    _check(hits, total)
    r1 = rate * np.array(BELOW_SHARES)
    log_ratio = hits * np.log(BELOW_SHARES) + (total - hits) * (np.log1p(-r1) - math.log1p(-rate))
    return max(float(log_mixture(log_ratio, np.array(BELOW_WEIGHTS))), LOG_FLOOR)


def rate_upper(hits: float, total: float, alpha: float) -> float:
    """Anytime upper confidence bound of a rate: the smallest rate that `rate_below` excludes, to one part in 1,000; 1 if none."""
    low, high = 1e-9, 0.999
    if rate_below(hits, total, high) < log_budget(alpha):
        return 1.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        if rate_below(hits, total, middle) >= log_budget(alpha):
            high = middle
        else:
            low = middle
    return high


def clean_needed(hits: float, total: float, rate: float, alpha: float) -> int:
    """Further chances without an event until `rate_below` certifies."""
    if rate_below(hits, total, rate) >= log_budget(alpha):
        return 0
    r1 = rate * np.array(BELOW_SHARES)
    growth = np.log1p(-r1) - math.log1p(-rate)
    goal = log_budget(alpha) - np.log(BELOW_WEIGHTS) - hits * np.log(BELOW_SHARES)
    few, enough = 0, max(1, math.ceil(float((goal / growth).min() - (total - hits))))  # one bet alone is enough here
    while enough - few > 1:
        middle = (few + enough) // 2
        if rate_below(hits, total + middle, rate) >= log_budget(alpha):
            enough = middle
        else:
            few = middle
    return enough


def sign_above(wins: float, losses: float) -> float:
    """Log of the e-process against "a win has conditional probability of at most 1/2"; ties are the caller's to place.

    Mixture of (2p)^wins (2(1-p))^losses over p uniform on [1/2, 1] in closed form:
    2^(n+1) B(wins + 1, losses + 1) P(Beta(wins + 1, losses + 1) > 1/2).
    """
    _check(wins, wins + losses)
    tail = float(betaincc(wins + 1, losses + 1, 0.5))
    if tail <= 0:
        return LOG_FLOOR
    return max((wins + losses + 1) * math.log(2) + float(betaln(wins + 1, losses + 1)) + math.log(tail), LOG_FLOOR)


def sign_needed(wins: float, losses: float, alpha: float) -> int | None:
    """Further comparisons until `sign_above` crosses if the share of wins stays; None while wins are not the majority.

    The growth per comparison is the Kullback-Leibler divergence of the share from 1/2.
    """
    short = log_budget(alpha) - sign_above(wins, losses)
    if short <= 0:
        return 0
    n = wins + losses
    if 2 * wins <= n:
        return None
    share = wins / n
    growth = math.log(2) + share * math.log(share) + float(xlog1py(1 - share, -share))
    return max(1, math.ceil(short / growth))


def _check(hits: float, total: float) -> None:
    if not 0 <= hits <= total:
        raise ValueError(f"{hits} events out of {total} chances")
