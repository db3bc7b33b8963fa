"""What the first requests of an attempt accepted at each position in the draft: the rate that a later fall is measured from.

It is frozen after a fixed number of requests and never moves with the traffic; it judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from canary.stats.part import Vector
from canary.stats.ratio_of_sums import CAP

WARM_UP = 20  # requests with drafts that fix the cap
REFERENCE = 400  # requests after them that fix the rates
ERRORS = 3.0  # standard errors of a reference: a rate within them has not fallen


@dataclass(frozen=True, slots=True)
class Reference:
    """What the attempt's first requests accepted.

    Args:
        n: requests with drafts so far, at most `WARM_UP` + `REFERENCE`.
        drafts: of the warm-up.
        d, dd: sums of the capped drafts of the others and of their squares.
        a, aa, ad: [cells] the same of what was accepted, and of both.
    """

    a: Vector
    aa: Vector
    ad: Vector
    n: int = 0
    drafts: float = 0.0
    d: float = 0.0
    dd: float = 0.0

    @classmethod
    def empty(cls, k: int) -> Reference:
        """Before any request."""
        return cls(np.zeros(k + 1), np.zeros(k + 1), np.zeros(k + 1))

    @property
    def frozen(self) -> bool:
        """Whether it has all its requests."""
        return self.n == WARM_UP + REFERENCE

    @property
    def cap(self) -> float:
        """Drafts to which a longer request is scaled down: twice the warm-up's mean. The less, the larger a bet can be."""
        return min(max(2 * self.drafts / WARM_UP, 1.0), float(CAP))

    @property
    def rates(self) -> Vector:
        """Accepted by drafts, [cells]."""
        return self.a / self.d

    @property
    def errors(self) -> Vector:
        """Standard errors of the rates, [cells]: of a ratio of sums, by the delta method."""
        squares = self.aa - 2 * self.rates * self.ad + self.rates**2 * self.dd
        return np.sqrt(np.maximum(squares, 0.0)) / self.d

    def boundary(self, fall: float) -> Vector:
        """Rates above which nothing counts as fallen, [cells]; 0 for a cell that is too rare to be watched.

        Args:
            fall: share of its reference that a rate may lose.
        """
        return np.maximum(np.minimum((1 - fall) * self.rates, self.rates - ERRORS * self.errors), 0.0)

    def first(self, cells: int) -> Reference:
        """The reference of the first cells alone."""
        return replace(self, a=self.a[:cells], aa=self.aa[:cells], ad=self.ad[:cells])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values that keep every bit."""
        arrays = {name: getattr(self, name).tolist() for name in ("a", "aa", "ad")}
        return arrays | {name: getattr(self, name) for name in ("n", "drafts", "d", "dd")}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Reference:
        """The inverse of `to_json`."""
        fields: dict[str, Any] = {k: np.array(v, dtype=np.float64) if isinstance(v, list) else v for k, v in body.items()}
        return cls(**fields)


def capped(accepted: Vector, drafts: Vector, cap: float) -> tuple[Vector, Vector]:
    """Counts of single requests, those with more than `cap` drafts scaled down to it.

    Args:
        accepted: [requests, cells]; drafts: [requests], above 0.

    Returns:
        The same; no request accepts more than it drafted.
    """
    scale = np.minimum(1.0, cap / drafts)
    d = drafts * scale
    return np.minimum(accepted * scale[:, None], d[:, None]), d


def gather(reference: Reference, accepted: Vector, drafts: Vector) -> tuple[Reference, int]:
    """Take requests into a reference until it is frozen; the same bits however they are split.

    Args:
        accepted: [requests, cells]; drafts: [requests].

    Returns:
        The reference, and how many requests it took.
    """
    warm = max(0, min(len(drafts), WARM_UP - reference.n))
    if warm:
        total = float(_added(np.array([reference.drafts]), drafts[:warm, None])[0])
        reference = replace(reference, n=reference.n + warm, drafts=total)
    more = min(len(drafts) - warm, WARM_UP + REFERENCE - reference.n)
    if reference.n < WARM_UP or more <= 0:
        return reference, warm
    a, d = capped(accepted[warm : warm + more], drafts[warm : warm + more], reference.cap)
    of_drafts = _added(np.array([reference.d, reference.dd]), np.stack([d, d * d], axis=1))
    reference = replace(
        reference,
        a=_added(reference.a, a),
        aa=_added(reference.aa, a * a),
        ad=_added(reference.ad, a * d[:, None]),
        n=reference.n + more,
        d=float(of_drafts[0]),
        dd=float(of_drafts[1]),
    )
    return reference, warm + more


def _added(start: Vector, rows: Vector) -> Vector:
    """Plain additions, one row after the other."""
    found: Vector = np.add.accumulate(np.concatenate([start[None], rows]), axis=0)[-1].copy()
    return found


def reference_of(state: Mapping[str, Any] | None) -> Reference | None:
    """The frozen reference that a folded state (`State.to_json`) holds; None where there is none yet."""
    body = state.get("reference") if state else None
    found = Reference.from_json(body) if body else None
    return found if found is not None and found.frozen else None
