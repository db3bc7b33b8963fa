"""E-processes on counts: is a rate above or below a bound, and is one side of a comparison the more frequent?

Everything is a closed form of the counts, so the counts are the whole state; it never sees which request a count came from.
Where a count is an array, one per ordinal, so is the log of the e-process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from typing import cast

import numpy as np
from scipy.special import betaincc, betaln, xlog1py

from canary.stats.bounded import log_budget, log_mixed
from canary.stats.part import Vector

LOG_FLOOR = -700.0  # below it a wealth is not representable, and no decision depends on it
ALTERNATIVE_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 0.9)
BELOW_SHARES = (0.001, 0.1, 0.3, 0.6)  # alternatives to a rate, as shares of it
BELOW_WEIGHTS = (0.7, 0.15, 0.1, 0.05)  # most of the bet is on "it never happens", the expected case


@dataclass(frozen=True, slots=True)
class _Bets:
    """Log factors of a hit and of a miss for every alternative to a rate, and the weight of each, [alternatives]."""

    hit: Vector
    miss: Vector
    weights: Vector


@cache
def _above(rate: float) -> _Bets:
    r1 = np.array([r for r in ALTERNATIVE_RATES if r > 1.5 * rate])
    return _Bets(np.log(r1 / rate), np.log1p(-r1) - math.log1p(-rate), np.full(len(r1), 1 / len(r1)))


@lru_cache(maxsize=1024)
def _below(rate: float) -> _Bets:
    r1 = rate * np.array(BELOW_SHARES)
    return _Bets(np.log(BELOW_SHARES), np.log1p(-r1) - math.log1p(-rate), np.array(BELOW_WEIGHTS))


def once_per_count(e_process: Callable[..., float]) -> Callable[..., float]:
    """Work an e-process out only at the ordinals where a count differs from the ordinal before: most events are rare."""

    @wraps(e_process)
    def wrapped(first: float | Vector, second: float | Vector, *rate: float) -> float:
        if np.ndim(first) != 1 or not len(cast(Vector, first)):
            return e_process(first, second, *rate)
        one = cast(Vector, first)
        other = cast(Vector, second) if np.ndim(second) else np.full(len(one), second)
        same = (one[1:] == one[:-1]) & (other[1:] == other[:-1])
        if not same.any():
            return e_process(one, other, *rate)
        new = np.concatenate([[True], ~same])
        return cast(float, np.asarray(e_process(one[new], other[new], *rate))[new.cumsum() - 1])

    return wrapped


@once_per_count
def rate_above(hits: float | Vector, total: float | Vector, rate: float) -> float:
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
    log_ratio = log_rate_bets(hits, total, rate)
    return _floored(log_mixed(log_ratio, _above(rate).weights))


def log_rate_bets(hits: float | Vector, total: float | Vector, rate: float) -> Vector:
    """Logs of the Bernoulli likelihood ratios that `rate_above` mixes, [..., `num_rate_bets`]: additive, so also of one request.

    Each has mean at most 1 whatever the chances' conditional probabilities up to `rate` are: a chance's factor has mean
    1 + (p - r0) (r1 - r0) / (r0 (1 - r0)), which rises with p and is 1 at r0.
    """
    bets = _above(rate)
    return _outer(hits, bets.hit) + _outer(total - hits, bets.miss)


def num_rate_bets(rate: float) -> int:
    """How many alternatives to a rate there are."""
    return len(_above(rate).weights)


@once_per_count
def rate_below(hits: float | Vector, total: float | Vector, rate: float) -> float:
    """Log of the e-process against "each event's conditional probability is at least `rate`": it certifies that it is below.

    A mixture of Bernoulli likelihood ratios towards `BELOW_SHARES` of the rate; clean data cross at about ln(1/alpha)/rate.
    """
    _check(hits, total)
    bets = _below(rate)
    return _floored(log_mixed(_outer(hits, bets.hit) + _outer(total - hits, bets.miss), bets.weights))


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
    growth = _below(rate).miss
    goal = log_budget(alpha) - np.log(BELOW_WEIGHTS) - hits * np.log(BELOW_SHARES)
    few, enough = 0, max(1, math.ceil(float((goal / growth).min() - (total - hits))))  # one bet alone is enough here
    while enough - few > 1:
        middle = (few + enough) // 2
        if rate_below(hits, total + middle, rate) >= log_budget(alpha):
            enough = middle
        else:
            few = middle
    return enough


@once_per_count
def sign_above(wins: float | Vector, losses: float | Vector) -> float:
    """Log of the e-process against "a win has conditional probability of at most 1/2"; ties are the caller's to place.

    Mixture of (2p)^wins (2(1-p))^losses over p uniform on [1/2, 1] in closed form:
    2^(n+1) B(wins + 1, losses + 1) P(Beta(wins + 1, losses + 1) > 1/2).
    """
    _check(wins, wins + losses)
    with np.errstate(divide="ignore"):  # a tail of 0 lies far below the floor
        log_tail = np.log(betaincc(wins + 1, losses + 1, 0.5))
    return _floored((wins + losses + 1) * math.log(2) + betaln(wins + 1, losses + 1) + log_tail)


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


def _outer(counts: float | Vector, logs: Vector) -> Vector:
    """Counts times logs per alternative, [..., alternatives]."""
    return np.multiply.outer(counts, logs)


def _floored(log_e: float | Vector) -> float:
    return cast(float, np.maximum(log_e, LOG_FLOOR))


def _check(hits: float | Vector, total: float | Vector) -> None:
    if np.ndim(hits) or np.ndim(total):
        inside = bool(np.all(hits >= np.float64(0))) and bool(np.all(total - hits >= np.float64(0)))
    else:
        inside = bool(0 <= hits <= total)
    if not inside:
        raise ValueError(f"{hits} events out of {total} chances")
