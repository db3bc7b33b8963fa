"""Acceptance on live traffic against the shadow's reference, one load band at a time.

A band is never compared with another: how loaded the engine is may change how much is drafted and accepted. It knows no baseline,
which drafts nothing.
"""

from __future__ import annotations

import numpy as np

from canary.domain import budget
from canary.domain.load import band_of
from canary.domain.observations import Observation
from canary.domain.policy import Gates
from canary.stats.drift import Drift, advance
from canary.stats.reference import Reference

UNKNOWN = "unknown"  # load band of observations that do not say it
TOTALS = ", totals"  # ending of the bands of observations without positions


def limit_of(gates: Gates) -> float:
    """Mean number of live requests between two false alarms, as of the change detector."""
    return budget.run_length(gates.watch_requests_per_day)


def band(o: Observation) -> str:
    """Where an observation is counted: its load band, those without positions apart."""
    load = UNKNOWN if o.concurrency is None else band_of(o.concurrency)
    return load if o.accepted_per_position is not None else load + TOTALS


def words(name: str) -> str:
    """`in load band 2-4`."""
    load = name.removesuffix(TOTALS)
    return "at unknown load" if load == UNKNOWN else f"in load band {load}"


def add(drifts: dict[str, Drift], gates: Gates, reference: Reference, o: Observation, number: int) -> None:
    """Show one observation with drafts to the detector of its band, which starts where there is none.

    Args:
        drifts: by band; the entry is replaced.
        reference: frozen; of k positions. What a gateway says beyond the k-th is not looked at.
        number: of the observation among those with drafts, from 0.
    """
    k, name = len(reference.a) - 1, band(o)
    accepted = [float(o.num_accepted_tokens or 0) / k]
    if o.accepted_per_position is not None:
        accepted += [float(count) for count in (*o.accepted_per_position, *[0] * k)[:k]]
    before = drifts.get(name) or Drift.quiet(len(accepted) - 1)
    counts, drafts = np.array([accepted]), np.array([float(o.num_drafts or 0)])
    fitted = reference.first(len(accepted))
    drifts[name] = advance(before, fitted, gates.acceptance_drift_margin, limit_of(gates), counts, drafts, [number])
