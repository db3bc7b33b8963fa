"""The gate `acceptance_drift`: quiet, alarmed or confirmed, for the shadow's pairs and for the live traffic band by band.

It passes while it is quiet, so it certifies nothing; only a confirmed fall fails it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from canary.domain import budget
from canary.domain.evidence import GateEvidence, GateRole, Source, Verdict
from canary.domain.facts import DRIFT_GATE
from canary.stats.drift import Drift, Since, cell_names, since
from canary.stats.live_drift import words
from canary.stats.reference import REFERENCE, WARM_UP, Reference
from canary.stats.watch import CONFIRM_REQUESTS

SETTLING = "settling"  # reason while the reference is not frozen


@dataclass(frozen=True, slots=True)
class Finding:
    """What one detector says.

    Args:
        where: ` in load band 2-4`, or "".
        share: of its reference that the leading cell accepts since the alarm; None without an alarm.
    """

    verdict: Verdict
    reason: str
    sentence: str
    where: str
    share: float | None = None
    needed: int | None = None


def shadow(fall: float, limit: float, reference: Reference, drift: Drift) -> GateEvidence:
    """The gate on the shadow's pairs.

    Args:
        fall: share of its reference that a rate may lose.
        limit: mean requests between false alarms.
    """
    if not reference.frozen:
        return _settling(fall, reference.n)
    found = judge(reference, drift)
    details = {**_facts(limit, reference, fall), **_seen(drift)}
    return evidence(found, fall, since(drift).requests, details)


def live(fall: float, limit: float, reference: Reference | None, bands: Mapping[str, Drift]) -> GateEvidence:
    """The gate on live traffic: the band that has fallen most surely speaks.

    Args:
        reference: the shadow's; None while it is not frozen.
        bands: load band -> its detector.
    """
    if reference is None:
        return _settling(fall, 0, Source.LIVE)
    found = {band: judge(reference, drift, f" {words(band)}") for band, drift in bands.items()}
    if not found:
        sentence = "No live request with drafts has been seen yet."
        worst = Finding(Verdict.NO_DATA, "no_data", sentence, "")
    else:
        worst = min(found.values(), key=lambda f: (f.verdict is not Verdict.FAIL, f.verdict is Verdict.PASS))
    seen = {band: _seen(drift) for band, drift in bands.items()}
    details = {**_facts(limit, reference, fall), "bands": seen}
    return evidence(worst, fall, sum(since(d).requests for d in bands.values()), details, Source.LIVE)


def judge(reference: Reference, drift: Drift, where: str = "") -> Finding:
    """What one detector says; its reference is frozen."""
    reference, alarm, seen = reference.first(drift.num_cells), drift.watch.alarm, since(drift)
    if alarm is None:
        sentence = f"The acceptance of drafts has not fallen{where} over {seen.requests} requests since its reference was taken."
        return Finding(Verdict.PASS, "no_fall", sentence, where)
    at, goal = seen.leading, 1 / budget.CONFIRM_ALPHA
    position = "over all positions" if at == 0 else f"at position {at}"
    value, share = math.exp(min(alarm.peak, 700.0)), _share(reference, seen)
    rates = f"{seen.rates[at]:.3f} against {reference.rates[at]:.3f}" if seen.requests else f"from {reference.rates[at]:.3f}"
    if alarm.confirmed:
        sentence = f"Fewer drafts are accepted {position}{where} ({rates}): confirmed with e-value {value:.3g} of {goal:g}."
        return Finding(Verdict.FAIL, "fall_confirmed", sentence, where, share)
    sentence = (
        f"Fewer drafts may be accepted {position}{where} ({rates}); since the alarm the e-value reached {value:.3g} of {goal:g} "
        f"in {alarm.pairs} of at most {CONFIRM_REQUESTS} requests."
    )
    return Finding(Verdict.INCONCLUSIVE, "fall_alarm", sentence, where, share, CONFIRM_REQUESTS - alarm.pairs)


def evidence(found: Finding, fall: float, n: int, details: Mapping[str, object], source: Source = Source.SHADOW) -> GateEvidence:
    """A finding as the gate."""
    return GateEvidence(
        DRIFT_GATE,
        GateRole.ECONOMY,
        found.verdict,
        found.reason,
        found.sentence,
        value=found.share,
        threshold=1 - fall,
        n=n,
        needed=found.needed,
        source=source,
        details=details,
    )


def _settling(fall: float, n: int, source: Source = Source.SHADOW) -> GateEvidence:
    total = WARM_UP + REFERENCE
    of = "The shadow's first" if source is Source.LIVE else "The first"
    sentence = f"{of} {total} requests with drafts give the reference{'' if source is Source.LIVE else f'; {n} are there'}."
    needed = None if source is Source.LIVE else total - n
    return evidence(Finding(Verdict.INCONCLUSIVE, SETTLING, sentence, "", None, needed), fall, n, {}, source)


def _share(reference: Reference, seen: Since) -> float | None:
    rate = float(reference.rates[seen.leading])
    return float(seen.rates[seen.leading]) / rate if seen.requests and rate else None


def _facts(limit: float, reference: Reference, fall: float) -> dict[str, object]:
    names, boundary = cell_names(len(reference.a) - 1), reference.boundary(fall)
    return {
        "mean_requests_between_false_alarms": limit,
        "reference": dict(zip(names, reference.rates.tolist(), strict=True)),
        "fallen_below": dict(zip(names, boundary.tolist(), strict=True)),
        "not_watched": [name for name, rate in zip(names, boundary, strict=True) if not rate],
    }


def _seen(drift: Drift) -> dict[str, object]:
    """Rates by cell since the alarm, or since the reference was frozen."""
    seen, alarm = since(drift), drift.watch.alarm
    names = cell_names(drift.num_cells - 1)
    return {
        "alarms": drift.watch.num_alarms,
        "requests": seen.requests,
        "accepted": dict(zip(names, seen.rates.tolist(), strict=True)) if seen.requests else {},
        "leading": names[seen.leading] if alarm else None,
        "request": alarm.ordinal if alarm else None,
        "confirming_requests": alarm.pairs if alarm else None,
    }
