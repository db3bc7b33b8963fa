"""Seeded requests whose drafts are accepted at given rates by position, and a detector that runs over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from canary.stats.drift import Drift, advance
from canary.stats.reference import REFERENCE, WARM_UP, Reference, gather

FALL = 0.1
RATES = (0.7, 0.7, 0.7, 0.7)  # of a position, given that all before it were accepted
Counts = tuple[np.ndarray, np.ndarray]  # accepted [requests, 1 + k] (`drift.cell_names`), drafts [requests]


def requests(rng: np.random.Generator, count: int, rates: Sequence[float] = RATES, most: int = 60) -> Counts:
    """Requests of 5 to `most` drafts whose own rates differ widely around the route's."""
    drafts = rng.integers(5, most, size=count)
    left, accepted = drafts, []
    for rate in rates:
        own = rng.beta(8 * rate, 8 * (1 - rate), size=count) if rate else np.zeros(count)
        left = rng.binomial(left, own)
        accepted.append(left)
    by_position = np.stack(accepted, axis=1).astype(float)
    return np.concatenate([by_position.sum(axis=1, keepdims=True) / len(rates), by_position], axis=1), drafts.astype(float)


def frozen(rng: np.random.Generator, rates: Sequence[float] = RATES) -> Reference:
    """The reference of an attempt that starts now."""
    found, taken = gather(Reference.empty(len(rates)), *requests(rng, WARM_UP + REFERENCE, rates))
    assert found.frozen
    assert taken == WARM_UP + REFERENCE
    return found


def run(drift: Drift, reference: Reference, counts: Counts, first: int, limit: float, fall: float = FALL) -> Drift:
    """The detector after further requests, whose numbers start at `first`."""
    accepted, drafts = counts
    return advance(drift, reference, fall, limit, accepted, drafts, list(range(first, first + len(drafts))))
