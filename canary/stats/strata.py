"""What the parts that read rows share: packed columns, the two strata of a route, and one gate out of both.

A stratum must certify on its own; one below the smallest share is not tested, and then nothing advances: the flag sends a route's
requests to the candidate whatever their stratum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.traffic import Stratum
from canary.stats.part import Context, Sums, Vector

MIN_SHARE = 0.05  # of the requests; a rarer stratum is not tested, and `untested_gate` keeps the route from advancing
GATE = "strata"
WORST_FIRST = (Verdict.ERROR, Verdict.FAIL, Verdict.NO_DATA, Verdict.INCONCLUSIVE, Verdict.PASS)


@cache
def positions(names: tuple[str, ...]) -> Mapping[str, int]:
    """Where each name stands."""
    return {name: at for at, name in enumerate(names)}


def pack(names: tuple[str, ...], values: Mapping[str, float]) -> Vector:
    """The increments in the order of their names; what is absent is 0.

    Raises:
        KeyError: a value has a name that the part does not have.
    """
    at, increments = positions(names), np.zeros(len(names))
    for name, value in values.items():
        increments[at[name]] = value
    return increments


def section(sums: Sums, names: Sequence[str]) -> Vector:
    """Several sums by name, in the order of the names, [..., names]."""
    at = positions(sums.names)
    return sums.values[..., [at[name] for name in names]]


def reached(sums: Sums, log_e: Mapping[str, float], key: str) -> float:
    """The largest value that an e-process has had, now included; Ville's inequality is about this one."""
    return float(max(log_e[key], sums.peaks.get(key, log_e[key])))


def tested_strata(requests: Mapping[Stratum, float]) -> list[Stratum]:
    """The strata with at least `MIN_SHARE` of the requests; none while there are no requests."""
    total = sum(requests.values())
    return [s for s in Stratum if total and requests[s] / total >= MIN_SHARE]


def untested_gate(requests: Mapping[Stratum, float]) -> GateEvidence | None:
    """The gate `strata`, inconclusive while the route has requests of a stratum that is too rare to be tested; else None."""
    tested, total = tested_strata(requests), int(sum(requests.values()))
    rare = {s: int(requests[s]) for s in Stratum if requests[s] and s not in tested}
    if not rare:
        return None
    names = " and ".join(f"{count} of {total} requests are {s}" for s, count in rare.items())
    sentence = f"{names}: below {100 * MIN_SHARE:g} % a stratum is not tested, and the flag would turn it on with the rest."
    return GateEvidence(
        GATE,
        GateRole.EQUIVALENCE,
        Verdict.INCONCLUSIVE,
        "stratum_untested",
        sentence,
        value=sum(rare.values()) / total,
        threshold=MIN_SHARE,
        n=total,
        details={"untested": {str(s): count for s, count in rare.items()}},
    )


def combine(found: Mapping[Stratum, GateEvidence]) -> GateEvidence:
    """One gate out of one finding per tested stratum: the worst speaks, and needs are the largest of all."""
    worst = min(found.values(), key=lambda g: WORST_FIRST.index(g.verdict))
    needs = [g.needed for g in found.values()]
    known = [n for n in needs if n is not None]
    strata = {
        str(s): {"verdict": str(g.verdict), "value": g.value, "high": g.high, "n": g.n, "needed": g.needed, **g.details}
        for s, g in found.items()
    }
    sentence = worst.sentence
    if len(found) > 1:
        name = next(s for s, g in found.items() if g is worst)
        sentence = f"In the {name} stratum: {sentence[0].lower()}{sentence[1:]}"
    return replace(
        worst,
        sentence=sentence,
        needed=max(known) if len(known) == len(needs) else worst.needed,
        progress=min((g.progress or 0.0) for g in found.values()),
        details={**worst.details, "strata": strata, "untested": [str(s) for s in Stratum if s not in found]},
    )


def nothing_yet(context: Context, gate: str, unit: str, threshold: float) -> GateEvidence:
    """The finding of an equivalence gate that has counted nothing: it is calibrating, or no request was scored."""
    if context.calibration is None:
        verdict, reason = Verdict.INCONCLUSIVE, "calibrating"
        sentence = "The first requests of the attempt calibrate; certificates start after them."
    else:
        verdict, reason, sentence = Verdict.NO_DATA, "no_data", "No request has been scored since the calibration."
    return GateEvidence(gate, GateRole.EQUIVALENCE, verdict, reason, sentence, unit=unit, threshold=threshold, progress=0.0)
