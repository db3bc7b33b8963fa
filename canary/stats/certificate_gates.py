"""Turns the logs of certificates into gates: certified, not yet and how many more requests, or nothing to go by.

It reads sums and peaks only; which directions exist and how they grow is said by `certificates`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.stats import coverage
from canary.stats.part import Context, Sums

DRIFT = 1.5  # how far a bank certificate may reach beyond the margin, as a multiple of it; room for a calibration of few requests
PRIOR_REQUESTS = 20  # weight of the closed-form growth beside the observed one, in requests


@dataclass(frozen=True, slots=True)
class Gate:
    """One certificate gate in words.

    Args:
        name: of the gate.
        excludes: what a certificate excludes; `{margin}` stands for the margin in per cent.
    """

    name: str
    excludes: str
    per_request: bool = False


BANK = Gate("bank_certificate", "any known fault that moves {margin} or more of the probability mass per token")
PIT = Gate("pit_certificate", "any tested generic shift of {margin} or more of the probability mass per token")
REQUEST = Gate("request_certificate", "a fault that takes over {margin} or more of all requests", per_request=True)


@dataclass(frozen=True, slots=True)
class Direction:
    """How far one certificate is.

    Args:
        peak: largest log C so far; certified when it reached ln(1/alpha), whatever came after.
        needed: further requests if it goes on growing like this; None where it does not grow.
    """

    name: str
    peak: float
    progress: float
    needed: int | None


@dataclass(frozen=True, slots=True)
class Reach:
    """What a bank certificate excludes on the tokens that it counted, which need not be like the calibrating ones.

    Args:
        strength: lam*; 1 where the direction is left out as inside the margin at full strength.
        calibrated: mean TV(p, a_k) that lam* was chosen by.
        realised: mean TV(p, a_k) of the counted tokens, by its one-sample estimate.
    """

    strength: float
    calibrated: float
    realised: float

    @property
    def contamination(self) -> float:
        """Mass per token that contamination of this strength moves, lam* times TV_k."""
        return self.strength * self.realised


def measure(name: str, sums: Sums, closed_growth: float, goal: float) -> Direction:
    """Peak, progress and remaining requests of one certificate.

    Args:
        closed_growth: expected log growth per request under equality, worst case.
        goal: ln(1/alpha).
    """
    now, peak = sums[name], sums.peaks.get(name, 0.0)
    if peak >= goal:
        return Direction(name, peak, 1.0, 0)
    progress = min(max(now, 0.0) / goal, 1.0)
    growth = (now + PRIOR_REQUESTS * closed_growth) / (sums["requests"] + PRIOR_REQUESTS)
    needed = math.ceil((goal - now) / growth) if growth > 0 else None
    return Direction(name, peak, progress, needed)


def judge(
    context: Context,
    sums: Sums,
    gate: Gate,
    names: Sequence[str],
    growth: Mapping[str, float],
    skipped: Mapping[str, Sequence[str]] = MappingProxyType({}),
    reach: Mapping[str, Reach] = MappingProxyType({}),
    inside: Sequence[str] = (),
) -> GateEvidence:
    """The evidence of one gate over the directions that it needs.

    Args:
        names: the directions that all have to certify.
        growth: closed-form log growth per request, by direction.
        skipped: reason -> alternatives without a certificate, listed in the details.
        reach: by alternative; once all directions are certified, none may reach farther than `DRIFT` times the margin.
        inside: alternatives that lie inside the margin at full strength: no certificate of the attempt excludes them.
    """
    goal = math.log(1 / context.alpha)
    margin = context.gates.request_margin if gate.per_request else context.gates.margin
    excludes = gate.excludes.format(margin=f"{100 * margin:g} %")
    requests = int(sums["requests"])
    found = [measure(name, sums, growth[name], goal) for name in names]
    slowest = min(found, key=lambda d: d.progress, default=None)
    needed = None if any(d.needed is None for d in found) else max((d.needed or 0 for d in found), default=0)
    if (lacking := _lacking(context, sums)) is not None:
        verdict, (reason, sentence, at_least) = Verdict.INCONCLUSIVE, lacking
        needed = None if needed is None or at_least is None else max(needed, at_least)
    elif slowest is None:
        verdict, reason, needed = Verdict.INCONCLUSIVE, "nothing_tested", None
        sentence = "No direction could be tested: on this traffic they lie inside the margin or equal the target."
    elif slowest.progress < 1:
        verdict, reason = Verdict.INCONCLUSIVE, "too_few" if needed is not None else "not_converging"
        tail = f"about {needed} more requests are needed" if needed is not None else "its evidence is not growing"
        sentence = f"{requests} requests do not yet exclude {excludes}; the slowest direction is {slowest.name}, {tail}."
    else:
        certified = f"{requests} requests exclude {excludes}, in all {len(found)} directions tested."
        verdict, reason, sentence, needed = _reached(certified, reach, margin)
        sentence += f" {coverage.sentence(sums, inside)}"
    return GateEvidence(
        gate=gate.name,
        role=GateRole.EQUIVALENCE,
        verdict=verdict,
        reason=reason,
        sentence=sentence,
        value=slowest.progress * goal if slowest else None,
        threshold=margin,
        n=requests,
        needed=needed,
        progress=slowest.progress if slowest else None,
        details=_details(context, sums, found, skipped, reach, margin, goal) | {"coverage": coverage.details(sums, inside)},
    )


def _reached(certified: str, reach: Mapping[str, Reach], margin: float) -> tuple[Verdict, str, str, int | None]:
    """(verdict, code, sentence, further requests) once every direction has certified its strength: is that the margin here?"""
    name = max(reach, key=lambda k: reach[k].contamination, default=None)
    if name is None or (farthest := reach[name]).contamination <= margin:
        return Verdict.PASS, "certified", certified, 0
    moved = f"{100 * farthest.contamination:.2g} %"
    if farthest.contamination <= DRIFT * margin:
        return Verdict.PASS, "certified", f"{certified} Measured on this traffic, {name} is excluded from {moved} on.", 0
    sentence = (
        f"The calibrating requests under-measured {name}: mean TV {farthest.calibrated:.4f}, and {farthest.realised:.4f} since, "
        f"so that its certificate excludes {moved} of the probability mass per token, not {100 * margin:g} %; open a new attempt."
    )
    return Verdict.INCONCLUSIVE, "calibration_drift", sentence, None


def _lacking(context: Context, sums: Sums) -> tuple[str, str, int | None] | None:
    """(code, sentence, further requests) where nothing can be certified yet, else None."""
    record = context.calibration
    if record is None:
        return "calibrating", "The first requests of the attempt calibrate; certificates start after them.", None
    if record.num_requests < record.num_required:
        sentence = (
            f"Only {record.num_requests} sampled requests were among the {record.num_ordinals} calibrating ones and "
            f"{record.num_required} are needed to choose strengths; raise shadow.calibration_requests or open a new attempt."
        )
        return "not_calibrated", sentence, None
    informative, wanted = sums["informative"], context.gates.min_informative
    if informative >= wanted:
        return None
    sentence = f"Only {informative:.0f} of the {wanted} tokens needed had a choice (over 1 % outside the likeliest token)."
    rate = informative / sums["requests"] if sums["requests"] else 0.0
    return "no_information", sentence, math.ceil((wanted - informative) / rate) if rate > 0 else None


def _details(
    context: Context,
    sums: Sums,
    found: Sequence[Direction],
    skipped: Mapping[str, Sequence[str]],
    reach: Mapping[str, Reach],
    margin: float,
    goal: float,
) -> dict[str, object]:
    """What a person wants to see beside verdict and coverage: every direction."""
    return {
        "margin": margin,
        "log_goal": goal,
        "alpha": context.alpha,
        "directions": {
            d.name: {"log_e": float(sums[d.name]), "peak": d.peak, "progress": d.progress, "needed": d.needed} for d in found
        },
        "reach": {k: {**asdict(r), "contamination": r.contamination} for k, r in reach.items()},
        "not_tested": {reason: list(names) for reason, names in skipped.items()},
    }
