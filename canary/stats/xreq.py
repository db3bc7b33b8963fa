"""Is randomness shared between requests? Every token may be exact given its own prefix while two requests repeat each other.

Only a bet on two requests at once can see that (statistics 3.2, XREQ). It must never compare a pair with one that did not enter,
and it never sees which tokens were drawn, only where in its row each of them fell.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import Pair
from canary.stats.bets import column, log_mean_exp, sampled_trace
from canary.stats.part import Context, Sums, Vector

NUM_SCORES = 128  # first tokens of a request that are compared; a shorter answer leaves the rest at 0
THETAS = (-0.5, -0.2, -0.05, 0.05, 0.2, 0.5, 0.9)
PRESENT = "present"


def scores(pit_mid: Vector) -> Vector:
    """Mid-PIT scores 2 (F(x-) + p(x)/2) - 1 of the first tokens, `[NUM_SCORES]`.

    Under x ~ p a score has mean 0 given everything before, since sum_x p(x) (2 F(x-) + p(x)) = 1; on a deterministic row it is 0.

    Args:
        pit_mid: F(x-) + p(x)/2 in the order of token ids, `[num_tokens]`.
    """
    found = np.zeros(NUM_SCORES)
    seen = 2.0 * np.clip(pit_mid[:NUM_SCORES], 0.0, 1.0) - 1.0
    found[: len(seen)] = seen
    return found


class Xreq:
    """Bets 1 + theta * x_t(this request) * x_t(previous request) over positions t; adds no gate of its own.

    The previous request is the one before among the sampled pairs of the attempt that entered with a trace. Given it, each factor
    has mean 1, and being above .1 it cannot go bankrupt. Tombstones, pairs set aside, greedy requests and failed arms are passed
    over, which is fair: which of them they are does not depend on the draws of the next request.
    `log_e`: `xreq`, which `losslessness` weighs.
    """

    name = "xreq"

    def names(self, context: Context) -> tuple[str, ...]:
        """`xreq@theta`, and how many requests had one before them."""
        return (*(f"xreq@{theta:g}" for theta in THETAS), "compared")

    def raw_names(self, context: Context) -> tuple[str, ...]:
        """Whether the pair has scores, and the scores."""
        return (PRESENT, *(f"score.{t}" for t in range(NUM_SCORES)))

    def increments(self, context: Context, pair: Pair) -> Vector:
        """The raw values of one pair; zeros where it says nothing about sampling."""
        trace = sampled_trace(pair)
        if trace is None:
            return np.zeros(1 + NUM_SCORES)
        return np.concatenate([[1.0], scores(column(trace, "pit_mid"))])

    def first_carry(self, context: Context) -> Vector:
        """Nothing came before."""
        return np.zeros(1 + NUM_SCORES)

    def chain(self, context: Context, raw: Vector, carry: Vector) -> tuple[Vector, Vector]:
        """See `part.Chained`; the carry is the raw vector of the newest pair that has scores."""
        found = np.zeros((len(raw), len(THETAS) + 1))
        present = np.flatnonzero(raw[:, 0])
        if not present.size:
            return found, carry
        these = raw[present]  # [present, 1 + scores]
        before = np.concatenate([carry[None], these[:-1]])
        products = these[:, 1:] * before[:, 1:]
        for at, theta in enumerate(THETAS):
            # At most 128 factors between .1 and 1.9: their product lies within 1e-128 to 1e36.
            found[present, at] = np.log(np.multiply.reduce(1.0 + theta * products, axis=1))
        found[present, -1] = before[:, 0]
        return found, these[-1].copy()

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        """`xreq`: log of the mean over strengths of exp(wealth)."""
        return {"xreq": cast(float, log_mean_exp(values[..., : len(THETAS)])[()])}

    def request_weights(self, context: Context) -> Vector:
        """See `part.Watched`."""
        return np.full(len(THETAS), 1 / len(THETAS))

    def log_request_bets(self, context: Context, increments: Vector) -> Vector:
        """See `part.Watched`."""
        return increments[:, : len(THETAS)]

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        """No gate: wealth is weighed with the other parts' in `losslessness`."""
        return []
