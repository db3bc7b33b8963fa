"""Bets on single draws of a round: is a draft accepted as often as it should be, is a number uniform, is a token from its row?

Sums are of logs of bets, pair by pair; every bet has mean at most 1 given all draws before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from canary.stats.bets import DEGREES, Array, excess_of, legendre, sum_log_bets
from canary.stats.ragged import Flags, Ragged, joined

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
_ACCEPT, _CERTAIN, _TIE = (np.asarray(thetas) for thetas in (ACCEPT_THETAS, CERTAIN_THETAS, TIE_THETAS))


def deviations(accepted: Flags, threshold: Array) -> Array:
    """What is bet on: +-D - .005 for the martingale difference D = accepted - threshold (statistics 3.4, ACC).

    Args:
        accepted, threshold: [D].

    Returns:
        [D, 2], upwards and downwards; the mean of either is below 0.
    """
    deviation = accepted - threshold
    return np.stack([deviation - ALLOWANCE, -deviation - ALLOWANCE], axis=1)


def accept_bets(deviation: Array) -> Array:
    """1 + theta (+-D - .005): [..., 2] to [..., 2 * thetas], of every judgement."""
    return np.asarray(1 + deviation[..., None, :] * _ACCEPT[:, None]).reshape(*deviation.shape[:-1], 2 * len(_ACCEPT))


def certain_bets(downwards: Array) -> Array:
    """1 + theta (-D - .005) of those whose threshold is 1: [...] to [..., thetas].

    A threshold is known before its uniform is drawn, so that these judgements may be a stratum of their own.
    """
    return np.asarray(1 + downwards[..., None] * _CERTAIN)


def accept_sums(drafts: Ragged, accepted: Flags, threshold: Array) -> tuple[Array, Array, Array]:
    """Sums of logs by pair: over all judgements, over those with a threshold below 1, over those with 1."""
    found, certain = deviations(accepted, threshold), threshold >= CERTAIN
    low, below = drafts.select(~certain)
    high, surely = drafts.select(certain)
    both = joined(drafts, below).sum_log(accept_bets, np.concatenate([found, found[low]]), MOST_LOG)
    every, low_ones = np.split(both, 2)
    return every, low_ones, surely.sum_log(certain_bets, found[high, 1], MOST_LOG)


def pit_bets(table: Array) -> Array:
    """1 +- theta L_j(2u - 1): `bets.legendre` [..., degrees] to [..., len(PIT_NAMES)]; of mean 1 under a uniform u."""
    return np.asarray(1 + _SIGNED_PIT * table[..., None, None, :]).reshape(*table.shape[:-1], len(PIT_NAMES))


def pit_sums(values: Sequence[tuple[Ragged, Array]]) -> list[Array]:
    """Sums of the logs of `pit_bets` by pair, of several kinds of values worked out together.

    Args:
        values: (groups, values in [0, 1], [n]) of each kind.

    Returns:
        [pairs, len(PIT_NAMES)] of each kind.
    """
    if not values:
        return []
    table = legendre(np.concatenate([u for _, u in values]))
    return np.split(joined(*(groups for groups, _ in values)).sum_log(pit_bets, table, MOST_LOG), len(values))


def ties(u: Array, before: Sequence[Array]) -> Array:
    """What is bet on where a uniform may be tied to a number that was there before it: (2u - 1)(2b - 1).

    Args:
        u: [n] drawn now.
        before: [n] each, in [0, 1] and known before; .5 where there is none.

    Returns:
        [n, ties], of mean 0 under a uniform u.
    """
    return np.asarray((2 * u[:, None] - 1) * (2 * np.stack(before, axis=1) - 1))


def tie_bets(tied: Array) -> Array:
    """1 + theta (2u - 1)(2b - 1): [..., ties] to [..., ties, len(TIE_THETAS)]."""
    return np.asarray(1 + tied[..., None] * _TIE)


def tie_sums(groups: Ragged, u: Array, before: Sequence[Array]) -> Array:
    """Sums of the logs of `tie_bets` by pair, tie by tie: [n] each to [pairs, ties * thetas]."""
    return groups.sum_log(tie_bets, ties(u, before), MOST_LOG).reshape(len(groups.lengths), -1)


def ratio_sums(groups: Ragged, log_ratios: Array) -> Array:
    """Sums of the logs of 1 + lam (a(x)/p(x) - 1) by pair: [n, alternatives] to [pairs, alternatives * strengths]."""
    return sum_log_bets(groups, excess_of(log_ratios)).reshape(len(groups.lengths), -1)
