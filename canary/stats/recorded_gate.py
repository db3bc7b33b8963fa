"""The safety gates at full: the candidate's failures there against what the attempt's earlier stages recorded of the baseline.

Without enough of that record it has no data and says so. An outage that would have hit the baseline too looks like the
candidate's own here, since nothing is left to compare with; the margin is all that stands between.
"""

from __future__ import annotations

import math

from canary.domain.evidence import GateEvidence, GateRole, Source, Verdict
from canary.stats.bounded import progress
from canary.stats.live import LiveContext, LiveState
from canary.stats.recorded import Recorded

SUSPICIOUS = 20.0  # e-value from which a safety gate stops to pass (statistics 5)
FAILURES = {"errors": "failed requests", "structured_validity": "invalid answers"}
REASONS = {"errors": "candidate_fails", "structured_validity": "invalid_answers"}

Found = tuple[Verdict, str, str]


def gate_at_full(
    context: LiveContext, state: LiveState, name: str, unheard: Found | None, compared: Found | None
) -> GateEvidence:
    """The gate in the stage that has no baseline.

    Args:
        unheard: why the candidate's own traffic does not allow a pass, if it does not.
        compared: the failure that the earlier stages' comparison has proven, if it has; it stays one.
    """
    record, needed = state.recorded.get(name, Recorded()), context.live.min_requests
    verdict, reason, sentence = compared or _judge(context, record, name, unheard)
    short = needed - record.requests
    return GateEvidence(
        name,
        GateRole.SAFETY,
        verdict,
        reason,
        sentence,
        value=record.failures / record.requests if record.requests else None,
        threshold=None if record.bound is None else record.bound + context.gates.error_margin,
        n=record.requests,
        needed=0 if verdict is Verdict.PASS else short if short > 0 and verdict is not Verdict.FAIL else None,
        progress=min(record.requests / needed, 1.0),
        source=Source.LIVE,
        details={
            "stage": state.stage,
            "candidate_requests": record.requests,
            "candidate_failures": record.failures,
            "earlier_baseline_requests": record.earlier_requests,
            "earlier_baseline_failures": record.earlier_failures,
            "earlier_baseline_bound": record.bound,
            "e_value_progress": progress(record.peak, context.safety_alpha / 2),
            "newest_at": float(state.newest.get(name, (0.0, 0.0))[1]) or None,
            "left_out": dict(state.left_out),
        },
    )


def _judge(context: LiveContext, record: Recorded, name: str, unheard: Found | None) -> Found:
    """A proof kills however few the requests; to pass, both the record and the traffic at full must be long enough."""
    margin, needed = context.gates.error_margin, context.live.min_requests
    facts = (
        f"Live at full, {record.failures} of {record.requests} requests were {FAILURES[name]}; the baseline had "
        f"{record.earlier_failures} of {record.earlier_requests} in the earlier stages"
    )
    if record.bound is not None:
        facts += f", a share of at most {record.bound:.4f}"
    if record.proven(context.safety_alpha):
        return Verdict.FAIL, REASONS[name], f"{facts}: proven to be more than {margin:g} over it."
    if record.earlier_requests < needed:
        sentence = (
            f"The attempt's earlier stages recorded {record.earlier_requests} live baseline requests that tell about it; "
            f"{needed} are needed, since at full nothing else says what the baseline's rate is."
        )
        return Verdict.NO_DATA, "no_baseline", sentence
    if unheard is not None:
        return unheard
    if record.log_above(margin) >= math.log(SUSPICIOUS):
        return Verdict.INCONCLUSIVE, "suspicious", f"{facts}: nearly proven to be more than {margin:g} over it."
    if record.failures / record.requests - record.earlier_rate > margin:
        return Verdict.INCONCLUSIVE, "excess_possible", f"{facts}: an excess over {margin:g}, which is not proven."
    return Verdict.PASS, "no_excess", f"{facts}: no sign of an excess over {margin:g}."
