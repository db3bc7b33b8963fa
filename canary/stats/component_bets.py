"""Bets on single draws of a round: is a draft accepted as often as it should be, is a number uniform, is a token from its row?

Each function adds up the logs of the bets of one pair; every bet has mean at most 1 given all draws before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canary.stats.bets import DEGREES, LAMBDAS, MAX_LOG_RATIO, Array, legendre
from canary.stats.judged import Flags
from canary.stats.products import sum_log

# The share of verdicts that may go either way without being evidence: rows that were rounded elsewhere move thresholds.
ALLOWANCE = 0.005
# Deviations lie in [-1, 1], so that a stake may come close to 1: the largest finds a verdict by argmax in a hundred tokens, the
# smallest an acceptance that is a tenth too high in ten thousand.
ACCEPT_THETAS = (0.05, 0.15, 0.45, 0.9)
# Where the threshold is 1 a rejection is the only deviation, and a bet loses no more than its stake times the allowance.
CERTAIN_THETAS = (1.0, 5.0, 20.0, 60.0)
PIT_THETAS = (0.06, 0.2, 0.5)
TIE_THETAS = (-0.5, -0.2, -0.05, 0.05, 0.2, 0.5, 0.9)  # as of the tie between requests (statistics 3.2, XREQ)
CERTAIN = 1 - 1e-6  # a threshold of 1, as float32 stores it
MOST_LOG = 4.2  # of a bet other than a likelihood ratio: none is below .07 or above 61

PIT_NAMES = tuple(f"{'+' if sign > 0 else '-'}{theta:g}*L{j}" for theta in PIT_THETAS for sign in (1, -1) for j in DEGREES)
ACCEPT_GROUPS = (
    tuple(f"all@{'+' if sign > 0 else '-'}{theta:g}" for theta in ACCEPT_THETAS for sign in (1, -1)),
    tuple(f"below@{'+' if sign > 0 else '-'}{theta:g}" for theta in ACCEPT_THETAS for sign in (1, -1)),
    tuple(f"certain@-{theta:g}" for theta in CERTAIN_THETAS),
)

_SIGNED_PIT = np.multiply.outer(np.asarray(PIT_THETAS), (1.0, -1.0))[:, :, None]  # [thetas, signs, 1]
_SIGNED_ACCEPT = np.multiply.outer(np.asarray(ACCEPT_THETAS), (1.0, -1.0)).ravel()
_ACCEPT_COST = ALLOWANCE * np.abs(_SIGNED_ACCEPT)


def accept_bets(accepted: Flags, threshold: Array) -> tuple[Array, Array]:
    """Bets on the martingale difference D = accepted - threshold (statistics 3.4, ACC).

    Args:
        accepted, threshold: [D].

    Returns:
        1 + theta (+-D - .005), [D, 2 * thetas], for every judgement; and 1 + theta (-D - .005), [D, thetas], for those whose
        threshold is 1. A threshold is known before its uniform is drawn, so that both kinds may be strata.
    """
    deviation = accepted - threshold
    both = 1 - _ACCEPT_COST + deviation[:, None] * _SIGNED_ACCEPT
    certain = 1 + (-deviation - ALLOWANCE)[:, None] * np.asarray(CERTAIN_THETAS)
    return both, certain


def accept_sums(accepted: Flags, threshold: Array) -> tuple[Array, Array, Array]:
    """Sums of the logs of `accept_bets`: over all judgements, over those with a threshold below 1, over those with 1."""
    below = threshold < CERTAIN
    both, certain = accept_bets(accepted, threshold)
    return sum_log(both, MOST_LOG), sum_log(both[below], MOST_LOG), sum_log(certain[~below], MOST_LOG)


def pit_bets(u: Array) -> Array:
    """1 +- theta L_j(2u - 1): [n] to [n, len(PIT_NAMES)]; under a uniform u every bet has mean exactly 1."""
    return np.asarray(1 + _SIGNED_PIT * legendre(u)[:, None, None, :]).reshape(len(u), len(PIT_NAMES))


def pit_sums(groups: Mapping[str, Array]) -> dict[str, Array]:
    """Sums of the logs of `pit_bets`, group by group: [n] each to [len(PIT_NAMES)] each."""
    bets, end, found = pit_bets(np.concatenate(list(groups.values()))), 0, {}
    for name, u in groups.items():
        start, end = end, end + len(u)
        found[name] = sum_log(bets[start:end], MOST_LOG)
    return found


def tie_bets(u: Array, before: Array) -> Array:
    """Bets that a uniform is tied to a number that was there before it: 1 + theta (2u - 1)(2b - 1).

    Args:
        u: [n] drawn now.
        before: [n, ties] in [0, 1], known before; .5 where there is none.

    Returns:
        [n, ties, len(TIE_THETAS)], of mean exactly 1 under a uniform u.
    """
    return np.asarray(1 + ((2 * u[:, None] - 1) * (2 * before - 1))[:, :, None] * np.asarray(TIE_THETAS))


def tie_sums(u: Array, before: Sequence[Array]) -> Array:
    """Sums of the logs of `tie_bets`, tie by tie: [n] each to [ties * thetas]."""
    return sum_log(tie_bets(u, np.stack(before, axis=1)), MOST_LOG).ravel()


def ratio_sums(log_ratios: Array) -> Array:
    """Sums of the logs of 1 + lam (a(x)/p(x) - 1), alternative by alternative: [n, alternatives] to [their strengths]."""
    excess = np.expm1(np.minimum(log_ratios, MAX_LOG_RATIO))
    return sum_log(1 + excess[:, :, None] * np.asarray(LAMBDAS), MAX_LOG_RATIO).ravel()
