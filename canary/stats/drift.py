"""Acceptance after promotion: a frozen reference per position in the draft, and bets that the rate has fallen below it.

The unit is the request. It says what has fallen and never what to do about it, and it compares like with like: the same
positions, the same cap, and on live traffic one load band at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from canary.stats import watch
from canary.stats.bounded import Bets, log_mixed
from canary.stats.part import Vector
from canary.stats.reference import Reference, capped
from canary.stats.watch import Watch

FALL_BETS = Bets.even(0.1, 0.3, 0.6, 0.95)
ALL = "all"  # accepted tokens by k and draft; beside it every position, from 1


@dataclass(frozen=True, slots=True)
class Drift:
    """One detector: of the shadow's pairs, or of one load band of the live traffic. Without positions it has the one cell `all`.

    Args:
        watch: of every bet of every cell.
        sums: since the reference was frozen: log bets [cells * bets], requests, capped drafts, and what they accepted [cells].
    """

    watch: Watch
    sums: Vector

    @classmethod
    def quiet(cls, k: int) -> Drift:
        """Before any request."""
        bets = (k + 1) * len(FALL_BETS.fractions)
        return cls(Watch(np.zeros(bets)), np.zeros(bets + 2 + k + 1))

    @property
    def num_cells(self) -> int:
        """One more than the positions."""
        return len(self.watch.statistic) // len(FALL_BETS.fractions)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values that keep every bit."""
        return {"watch": self.watch.to_json(), "sums": self.sums.tolist()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Drift:
        """The inverse of `to_json`."""
        return cls(Watch.from_json(body["watch"]), np.array(body["sums"], dtype=np.float64))


def cell_names(k: int) -> tuple[str, ...]:
    """`all`, then the positions from 1."""
    return (ALL, *(str(at + 1) for at in range(k)))


def weights(k: int) -> Vector:
    """Weight of every bet, [cells * bets]: half on all positions together, half shared by them; the stakes share evenly."""
    cells = np.array([0.5, *([0.5 / k] * k)] if k else [1.0])
    return np.outer(cells, FALL_BETS.weights).ravel()


def log_bets(accepted: Vector, drafts: Vector, cap: float, boundary: Vector) -> Vector:
    """Logs of the bets that a rate is below its boundary.

    With Z = a - boundary * d of a request (statistics 4) the payoff -Z / ((1 - boundary) cap) is at least -1; it has mean at most
    0 wherever the request's conditional mean of Z is at least 0. A cell with boundary 0 is not bet on.

    Args:
        accepted, drafts: see `capped`; boundary: [cells].

    Returns:
        [requests, cells * bets].
    """
    payoff = (boundary * drafts[:, None] - accepted) / ((1 - boundary) * cap)
    payoff = np.where(boundary > 0, np.maximum(payoff, -1.0), 0.0)
    return np.asarray(np.log1p(payoff[:, :, None] * np.asarray(FALL_BETS.fractions))).reshape(len(drafts), -1)


def advance(
    drift: Drift, reference: Reference, fall: float, limit: float, accepted: Vector, drafts: Vector, ordinals: Sequence[int]
) -> Drift:
    """Look at consecutive requests with drafts; the same bits however they are split.

    As the change detector does (`watch.advance`): bands are looked at apart, and since every request is in one band the mean
    number of requests before a false alarm in any of them is at least `limit`. The confirmation mixes the same bets from zero.

    Args:
        reference: frozen.
        fall, limit: see `Reference.boundary` and `watch.threshold`.
        accepted: [requests, cells]; drafts, ordinals: [requests].
    """
    if not len(drafts):
        return drift
    k = len(reference.a) - 1
    a, d = capped(accepted, drafts, reference.cap)
    bets = log_bets(a, d, reference.cap, reference.boundary(fall))
    rows = np.concatenate([bets, np.ones((len(d), 1)), d[:, None], a], axis=1)
    sums = np.add.accumulate(np.concatenate([drift.sums[None], rows]), axis=0)[1:]
    shares = weights(k)
    found = watch.advance(drift.watch, limit, bets, shares, ordinals, sums, lambda values: log_wealth(values, shares))
    return Drift(found, sums[-1].copy())


def log_wealth(sums: Vector, shares: Vector) -> Vector:
    """Log of the mixture of all bets at these sums, [requests, numbers] to [requests]."""
    return np.asarray(log_mixed(sums[:, : len(shares)], shares))


@dataclass(frozen=True, slots=True)
class Since:
    """What was seen since the alarm, or since the reference was frozen where there is none.

    Args:
        requests: with drafts.
        rates: [cells]; nan without a request.
        leading: place of the cell that has fallen most surely.
    """

    requests: int
    rates: Vector
    leading: int


def since(drift: Drift) -> Since:
    """See `Since`."""
    alarm = drift.watch.alarm
    sums = drift.sums - alarm.sums if alarm else drift.sums
    bets = len(drift.watch.statistic)
    logs, (requests, drafts) = sums[:bets].reshape(-1, len(FALL_BETS.fractions)), sums[bets : bets + 2]
    rates = sums[bets + 2 :] / drafts if drafts else np.full(len(logs), math.nan)
    return Since(int(requests), rates, int(logs.max(axis=1).argmax()))
