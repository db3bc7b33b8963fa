"""How many more of the route's own requests a gate needs, and in which stratum they are short.

Gates count what their statistic counts: requests of one stratum, or positions. People wait for requests of the whole route.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.traffic import Stratum

SAMPLED_ONLY = ("bank_certificate", "pit_certificate", "request_certificate")
EXPIRED = "expired"
WAITING = ("too_few", "not_yet", "not_converging", "no_information")  # reasons that more requests may end
GREEDY_ONLY = ("gap_certificate", "request_certificate_greedy")


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What a gate waits for.

    Args:
        stratum: the one that is short; None where the gate counts every request alike.
        requests: further requests of the route, at its present mix, until that stratum has enough; None if unknown.
    """

    stratum: Stratum | None
    requests: int | None


def of_gate(gate: GateEvidence, pairs: Mapping[Stratum, float]) -> Shortfall | None:
    """The shortfall of one gate.

    Args:
        pairs: folded pairs of each stratum; their shares are taken for the route's.

    Returns:
        None for a gate that is decided or does not say what it waits for.
    """
    if gate.verdict in (Verdict.PASS, Verdict.FAIL):
        return None
    found = [_in_requests(need, pairs) for need in _needs(gate)]
    known = [each for each in found if each.requests is not None]
    return max(known, key=lambda each: each.requests or 0) if known else next(iter(found), None)


def told(
    gates: Iterable[GateEvidence], pairs: Mapping[Stratum, float], max_requests: int | None = None
) -> tuple[GateEvidence, ...]:
    """The gates with `short_stratum` and `needed_requests` in the details of those that wait; all else stays as it is.

    Args:
        pairs: folded pairs of each stratum.
        max_requests: pairs after which an equivalence gate that only waits is `expired`; what it waited for stays in its details.
    """
    used_up = max_requests is not None and sum(pairs.values()) >= max_requests
    found = []
    for gate in gates:
        short = of_gate(gate, pairs)
        if short is not None:
            facts = {"short_stratum": short.stratum and str(short.stratum), "needed_requests": short.requests}
            gate = replace(gate, details={**gate.details, **facts})
        if used_up and gate.role is GateRole.EQUIVALENCE and gate.verdict is Verdict.INCONCLUSIVE and gate.reason in WAITING:
            sentence = f"The budget of {max_requests} requests is used up. {gate.sentence}"
            gate = replace(gate, reason=EXPIRED, sentence=sentence, details={**gate.details, "waited_for": gate.reason})
        found.append(gate)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Need:
    """What one stratum of a gate still counts.

    Args:
        stratum: None where every request counts alike.
        units: further units; `per_request` of them come with a request of the stratum.
    """

    stratum: Stratum | None
    units: float | None
    per_request: float


def _needs(gate: GateEvidence) -> list[_Need]:
    strata = gate.details.get("strata")
    if isinstance(strata, Mapping):
        waiting = {Stratum(name): s for name, s in strata.items() if s["verdict"] not in (Verdict.PASS, Verdict.FAIL)}
        return [_Need(name, s["needed"], _per_request(gate.unit, s)) for name, s in waiting.items()]
    stratum = Stratum.SAMPLED if gate.gate in SAMPLED_ONLY else Stratum.GREEDY if gate.gate in GREEDY_ONLY else None
    if gate.needed is None and stratum is None:
        return []
    return [_Need(stratum, gate.needed, _per_request(gate.unit, gate.details))]


def _per_request(unit: str, details: Mapping[str, Any]) -> float:
    """Units that come with one request: for positions the baseline's mean length, for blocks a share of one."""
    if unit == "blocks":
        return 1.0 / float(details.get("requests_per_unit", 1))
    if unit != "positions":
        return 1.0
    return max(float(details.get("baseline_positions", 0)) / max(float(details.get("baseline_requests", 0)), 1.0), 1.0)


def _in_requests(need: _Need, pairs: Mapping[Stratum, float]) -> Shortfall:
    if need.units is None:
        return Shortfall(need.stratum, None)
    requests = need.units / need.per_request
    if need.stratum is not None:
        if not pairs[need.stratum]:
            return Shortfall(need.stratum, None)
        requests *= sum(pairs.values()) / pairs[need.stratum]
    return Shortfall(need.stratum, math.ceil(requests))
