"""The component tests as a change detector sees them: what every bet multiplies its wealth by at one request, and its weight.

The bets are those of the kill e-value, request by request; it never looks at a pair, and it adds none of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canary.stats.part import Vector
from canary.stats.rates import log_rate_bets, num_rate_bets

Group = tuple[str, int, int]  # e-process, start and end of its sums


def log_bets(groups: Sequence[Group], rates: Mapping[str, float | None], increments: Vector) -> Vector:
    """Logs of the bets of single pairs, group by group.

    Sums of logs are their own; counts of (hits, chances) become the likelihood ratios that `rates.rate_above` mixes, of this
    request alone: valid whatever the chances' conditional rates are, as long as none is above the null.

    Args:
        groups: in the order of the increments.
        rates: null of every e-process that counts, None for one that sums logs.
        increments: [pairs, numbers].

    Returns:
        [pairs, bets].
    """
    found = [np.zeros((len(increments), 0))]
    for name, start, end in groups:
        rate, numbers = rates[name], increments[:, start:end]
        found.append(numbers if rate is None else log_rate_bets(numbers[:, 0], numbers[:, 1], rate))
    return np.concatenate(found, axis=1)


def weights(groups: Sequence[Group], rates: Mapping[str, float | None]) -> Vector:
    """Weight of every bet of `log_bets`, [bets]: e-processes share evenly, so do the groups of one, and the bets of a group."""
    names = [name for name, _, _ in groups]
    num_processes, found = len(set(names)), [np.zeros(0)]
    for name, start, end in groups:
        rate = rates[name]
        width = end - start if rate is None else num_rate_bets(rate)
        found.append(np.full(width, 1 / (num_processes * names.count(name) * width)))
    return np.concatenate(found)
