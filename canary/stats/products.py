"""Sums of logs over a request's tokens, taken as logs of products of a few tokens each: a tenth of the logarithms.

It must never overflow or vanish silently: callers say how large a factor can be, and the block length follows from that.
"""

from __future__ import annotations

import math

import numpy as np

from canary.stats.part import Vector

MOST_LOG = 690.0  # a product of doubles lies within exp(-690) and exp(690)
LONGEST = 32  # rounding of a block is at most its length times 1.1e-16


def block_length(most_log: float) -> int:
    """Tokens whose factors may be multiplied before a logarithm is taken.

    Args:
        most_log: largest absolute log of a factor.
    """
    return max(1, min(LONGEST, math.floor(MOST_LOG / most_log)))


def sum_log(factors: Vector, most_log: float) -> Vector:
    """Sum over the first axis of log(factors), within 4e-15 for every `LONGEST` tokens.

    Args:
        factors: positive, `[num_tokens, ...]`.
        most_log: largest absolute log of a factor.

    Returns:
        `[...]`; 0 without tokens.
    """
    length = block_length(most_log)
    whole = len(factors) // length * length
    blocks = factors[:whole].reshape(-1, length, *factors.shape[1:])
    found: Vector = np.log(np.multiply.reduce(blocks, axis=1)).sum(axis=0)
    if whole < len(factors):
        found = found + np.log(np.multiply.reduce(factors[whole:], axis=0))
    return found
