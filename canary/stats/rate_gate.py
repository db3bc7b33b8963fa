"""One gate out of counts: "such events are rarer than a rate", after the baseline's own events have shown the threshold fair.

A threshold inside the noise is an error of measuring and must never be counted against the candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.stats.bounded import log_budget, progress
from canary.stats.part import Context
from canary.stats.rates import clean_needed, rate_upper
from canary.stats.strata import nothing_yet


@dataclass(frozen=True, slots=True)
class Floor:
    """The baseline's own events.

    Args:
        log_e: current log of the e-process against "the baseline stays below the gate's limit".
        events, positions, requests_hit, requests: its events, and its requests with at least one.
    """

    log_e: float
    events: float
    positions: float
    requests_hit: float
    requests: float

    def with_log_e(self, log_e: float) -> Floor:
        """The same counts against another limit."""
        return replace(self, log_e=log_e)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a rate gate has seen.

    Args:
        what: the events, in the plural.
        claims: what a certificate says, with `{rate}` in it; completes "certified to have ...".
        rate: what has to be excluded.
        hits, total: the candidate's events and chances since the calibration, in `unit`s.
        log_below, log_above: largest logs of the e-processes that certify and refute.
    """

    gate: str
    what: str
    claims: str
    rate: float
    hits: float
    total: float
    unit: str
    log_below: float
    log_above: float
    floor: Floor


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
            "baseline_events": int(claim.floor.events),
            "baseline_positions": int(claim.floor.positions),
            "baseline_positions_needed": context.gates.noise_floor_positions,
            "baseline_requests_with_events": int(claim.floor.requests_hit),
            "baseline_requests": int(claim.floor.requests),
        },
    )


def _verdict(context: Context, claim: Claim, needed: int) -> tuple[Verdict, str, str]:
    budget, least, floor = log_budget(context.alpha), context.gates.noise_floor_positions, claim.floor
    facts = f"The candidate has {claim.hits:.0f} {claim.what} in {claim.total:.0f} {claim.unit}"
    claims = claim.claims.format(rate=claim.rate)
    if floor.log_e >= budget:
        own = (
            f"The baseline itself has {floor.events:.0f} such tokens in {floor.requests_hit:.0f} of {floor.requests:.0f} requests"
        )
        return (
            Verdict.ERROR,
            "noise_floor",
            f"{own}, so the threshold lies inside the noise and says nothing about the candidate.",
        )
    if claim.log_above >= budget:
        return Verdict.FAIL, "above_rate", f"{facts}, proven not to have {claims}."
    if floor.positions < least:
        sentence = f"The noise floor needs {least} baseline positions and has {floor.positions:.0f}."
        return Verdict.NO_DATA, "too_few_baseline_positions", sentence
    if claim.log_below >= budget:
        return Verdict.PASS, "certified", f"{facts}, certified to have {claims}."
    return Verdict.INCONCLUSIVE, "not_yet", f"{facts}; {needed} more {claim.unit} without any certify {claims}."
