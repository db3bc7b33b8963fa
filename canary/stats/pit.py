"""Bets on the randomised probability integral transform: faults without a name, such as reused uniforms (statistics 3.2).

Weak against any fault that the bank knows; it must never be the main test.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import Pair
from canary.stats.bets import DEGREES, THETAS, Array, column, legendre, log_mean_exp, sampled_trace
from canary.stats.part import Context, Sums, Vector
from canary.stats.products import sum_log

ORDERS = ("pit_id", "pit_ratio")
SIGNS = (1, -1)
SIGNED = np.asarray(THETAS)[:, None] * np.asarray(SIGNS)  # [thetas, signs]
WIDTH = len(THETAS) * len(SIGNS) * len(DEGREES)


def log_pit_bets(u: Array) -> Array:
    """Logs of 1 +- theta * L_j(2u - 1).

    Args:
        u: PIT values, any shape.

    Returns:
        `[..., thetas, signs, degrees]`; under a uniform u every bet has mean exactly 1.
    """
    return np.asarray(np.log1p(SIGNED[:, :, None] * legendre(u)[..., None, None, :]))


def sum_log_pit_bets(u: Array) -> Array:
    """Sums of `log_pit_bets` over the first axis, within 1e-12.

    Args:
        u: `[num_tokens, ...]`.

    Returns:
        `[..., thetas, signs, degrees]`.
    """
    return sum_log(1.0 + SIGNED[:, :, None] * legendre(u)[..., None, None, :], -math.log1p(-max(THETAS)))


class Pit:
    """PIT bets in token-id order and in the order of q/p; adds no gate of its own, `losslessness` reads its wealth."""

    name = "pit"

    def names(self, context: Context) -> tuple[str, ...]:
        """`order@theta` with sign and degree, e.g. `pit_id@+0.06*L2`."""
        return tuple(
            f"{order}@{'+' if sign > 0 else '-'}{theta:g}*L{j}"
            for order in ORDERS
            for theta in THETAS
            for sign in SIGNS
            for j in DEGREES
        )

    def increments(self, context: Context, pair: Pair) -> Vector:
        """Sums over the pair's tokens of the log bets."""
        trace = sampled_trace(pair)
        if trace is None:
            return np.zeros(len(ORDERS) * WIDTH)
        u = np.stack([column(trace, order) for order in ORDERS], axis=1)  # [num_tokens, orders]
        return sum_log_pit_bets(u).ravel()

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        """`pit_id` and `pit_ratio`: log of the mean of exp(wealth) over strengths, signs and degrees."""
        logs = log_mean_exp(values.reshape(*values.shape[:-1], len(ORDERS), WIDTH))  # [..., orders]
        return {order: cast(float, logs[..., at]) for at, order in enumerate(ORDERS)}

    def request_weights(self, context: Context) -> Vector:
        """See `part.Watched`."""
        return np.full(len(ORDERS) * WIDTH, 1 / (len(ORDERS) * WIDTH))

    def log_request_bets(self, context: Context, increments: Vector) -> Vector:
        """See `part.Watched`."""
        return increments

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        """No gate: wealth is weighed with the other parts' in `losslessness`."""
        return []
