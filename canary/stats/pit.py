"""Bets on the randomised probability integral transform: faults without a name, such as reused uniforms (statistics 3.2).

Weak against any fault that the bank knows; it must never be the main test.
"""

from __future__ import annotations

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import Pair
from canary.stats.bets import DEGREES, THETAS, Array, column, legendre, log_mean_exp, sampled_trace
from canary.stats.part import Context, Sums, Vector

ORDERS = ("pit_id", "pit_ratio")
SIGNS = (1, -1)
WIDTH = len(THETAS) * len(SIGNS) * len(DEGREES)


def log_pit_bets(u: Array) -> Array:
    """Logs of 1 +- theta * L_j(2u - 1).

    Args:
        u: PIT values, any shape.

    Returns:
        `[..., thetas, signs, degrees]`; under a uniform u every bet has mean exactly 1.
    """
    signed = np.asarray(THETAS)[:, None] * np.asarray(SIGNS)  # [thetas, signs]
    return np.asarray(np.log1p(signed[:, :, None] * legendre(u)[..., None, None, :]))


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
        u = np.stack([column(trace, order) for order in ORDERS])  # [orders, num_tokens]
        return np.asarray(log_pit_bets(u).sum(axis=1)).ravel()

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        """`pit_id` and `pit_ratio`: log of the mean of exp(wealth) over strengths, signs and degrees."""
        return dict(zip(ORDERS, (float(v) for v in log_mean_exp(values.reshape(len(ORDERS), WIDTH))), strict=True))

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        """No gate: wealth is weighed with the other parts' in `losslessness`."""
        return []
