"""A median ratio with its anytime interval, from a histogram of fixed edges: the state of any number of requests.

Only the shown interval comes from here; a gate's own threshold is decided by exact counts.
"""

from __future__ import annotations

import math

import numpy as np

from canary.stats.bounded import highest_excluded, log_budget, lowest_excluded
from canary.stats.part import Vector
from canary.stats.rates import sign_above

# Edges of the histogram: 6 % steps, 2.5 % from 1 to 2.
EDGES = np.exp(
    np.concatenate(
        [np.linspace(math.log(0.5), 0, 13)[:-1], np.linspace(0, math.log(2), 29), np.linspace(math.log(2), math.log(4), 13)[1:]]
    )
)
BINS = tuple(f"bin.{i}" for i in range(len(EDGES) + 1))


def bin_of(ratio: float) -> str:
    """The name of the bin that a ratio falls into; one on an edge belongs to the bin above it."""
    return BINS[int(np.searchsorted(EDGES, ratio, side="right"))]


def median(counts: Vector) -> float:
    """The median ratio, geometric inside its bin; the outer bins give their edge.

    Args:
        counts: requests per bin, [bins], at least one.
    """
    total, at = float(counts.sum()) / 2, 0
    while counts[: at + 1].sum() < total:
        at += 1
    if at == 0 or at == len(EDGES):
        return float(EDGES[min(at, len(EDGES) - 1)])
    inside = (total - float(counts[:at].sum())) / float(counts[at])
    return float(EDGES[at - 1] ** (1 - inside) * EDGES[at] ** inside)


def interval(counts: Vector, alpha: float) -> tuple[float, float | None]:
    """Anytime bounds of the median ratio, each at alpha, by inverting the sign test over `EDGES`; 0 and None outside them.

    A ratio on an edge counts as at least that edge, so that the interval is closed.

    Args:
        counts: requests per bin, [bins].
    """
    total = float(counts.sum())
    under = np.cumsum(counts)[:-1]  # ratios below each edge, [edges]
    above = np.array([sign_above(total - u, u) for u in under.tolist()])
    below = np.array([sign_above(u, total - u) for u in under.tolist()])
    budget = log_budget(alpha)
    high = lowest_excluded(EDGES, below >= budget, math.inf)
    return highest_excluded(EDGES, above >= budget, 0.0), high if math.isfinite(high) else None
