"""One gate out of counts: "such events are rarer than a rate", after the baseline's own events have shown the threshold fair.

A threshold inside the noise is an error of measuring and must never be counted against the candidate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.stats.bounded import log_budget, progress
from canary.stats.part import Context
from canary.stats.rates import clean_needed, rate_upper
from canary.stats.strata import nothing_yet


@dataclass(frozen=True, slots=True)
class Claim:
    """What a rate gate has seen.

    Args:
        what: the events, in the plural.
        rate: what has to be excluded.
        hits, total: the candidate's events and chances since the calibration, in `unit`s.
        log_below, log_above: largest logs of the e-processes that certify and refute.
        log_floor: the same against "the baseline's rate is at most its limit".
        floor_hits, floor_total: the baseline's events and positions.
    """

    gate: str
    what: str
    rate: float
    hits: float
    total: float
    unit: str
    log_below: float
    log_above: float
    log_floor: float
    floor_hits: float
    floor_total: float


def sign_increments(candidate: np.ndarray, baseline: np.ndarray) -> dict[str, float]:
    """Whether only one arm has an event in the positions that both texts have; booleans [tokens] of each arm."""
    shared = min(candidate.size, baseline.size)
    one, other = bool(candidate[:shared].any()), bool(baseline[:shared].any())
    return {"only_candidate": float(one and not other), "only_baseline": float(other and not one)}


def judge(context: Context, claim: Claim) -> GateEvidence:
    """The gate's evidence."""
    if context.calibration is None:
        return nothing_yet(context, claim.gate, claim.unit, claim.rate)
    needed = clean_needed(claim.hits, claim.total, claim.rate, context.alpha)
    verdict, reason, sentence = _verdict(context, claim, needed)
    high = rate_upper(claim.hits, claim.total, context.alpha) if claim.total else None
    return GateEvidence(
        claim.gate,
        GateRole.EQUIVALENCE,
        verdict,
        reason,
        sentence,
        value=claim.hits / claim.total if claim.total else None,
        high=min(high, claim.rate) if high is not None and verdict is Verdict.PASS else high,
        threshold=claim.rate,
        n=int(claim.total),
        unit=claim.unit,
        needed={Verdict.PASS: 0, Verdict.FAIL: None, Verdict.ERROR: None}.get(verdict, needed),
        progress=progress(claim.log_below, context.alpha),
        details={
            "events": int(claim.hits),
            "baseline_events": int(claim.floor_hits),
            "baseline_positions": int(claim.floor_total),
            "baseline_positions_needed": context.gates.noise_floor_positions,
        },
    )


def _verdict(context: Context, claim: Claim, needed: int) -> tuple[Verdict, str, str]:
    budget, least = log_budget(context.alpha), context.gates.noise_floor_positions
    facts = f"The candidate has {claim.hits:.0f} {claim.what} in {claim.total:.0f} {claim.unit}"
    if claim.log_floor >= budget:
        floor = f"The baseline itself has {claim.floor_hits:.0f} such tokens in {claim.floor_total:.0f}"
        return (
            Verdict.ERROR,
            "noise_floor",
            f"{floor}, so the threshold lies inside the noise and says nothing about the candidate.",
        )
    if claim.log_above >= budget:
        return Verdict.FAIL, "above_rate", f"{facts}, proven to be more than {claim.rate:g} of them."
    if claim.floor_total < least:
        sentence = f"The noise floor needs {least} baseline positions and has {claim.floor_total:.0f}."
        return Verdict.NO_DATA, "too_few_baseline_positions", sentence
    if claim.log_below >= budget:
        return Verdict.PASS, "certified", f"{facts}, certified to be less than {claim.rate:g} of them."
    return Verdict.INCONCLUSIVE, "not_yet", f"{facts}; {needed} more without any certify less than {claim.rate:g}."
