"""Bets on the randomised probability integral transform: faults without a name, such as reused uniforms (statistics 3.2).

Weak against any fault that the bank knows; it must never be the main test.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.stats.batch import Batch, Together
from canary.stats.bets import DEGREES, THETAS, Array, legendre, log_mean_exp
from canary.stats.part import Context, Sums, Vector
from canary.stats.ragged import Ragged

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


def sum_log_pit_bets(tokens: Ragged, table: Array) -> Array:
    """Sums of `log_pit_bets` over the tokens of each pair, within 1e-12.

    Args:
        table: `bets.legendre` of the PIT values, `[tokens, ..., degrees]`.

    Returns:
        `[pairs, ..., thetas, signs, degrees]`.
    """
    stakes = SIGNED[:, :, None]
    return tokens.sum_log(lambda q: 1.0 + stakes * q[..., None, None, :], table, -math.log1p(-max(THETAS)))


def pit_table(batch: Batch) -> Array:
    """`bets.legendre` of the sampled pairs' tokens in both orders, `[tokens, orders, degrees]`; not to be written to."""

    def make() -> Array:
        return legendre(np.stack([batch.traces.column(order) for order in ORDERS], axis=1))

    return batch.once("legendre", make)


class Pit(Together):
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

    def increments_many(self, batch: Batch) -> Vector:
        """Sums over each pair's tokens of the log bets."""
        sums = sum_log_pit_bets(batch.traces.tokens, pit_table(batch))
        return batch.spread(sums.reshape(len(batch.sampled), len(ORDERS) * WIDTH))

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
