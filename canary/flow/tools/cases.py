"""Golden decisions: runs what NAME.cases.yaml expects of NAME.yaml through the very `decide` and `step` that production uses.

Nothing here decides anything itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from canary.domain.decide import decide
from canary.domain.errors import PolicyError
from canary.domain.evidence import Evidence, GateEvidence, GateRole, Source, Verdict
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout, State
from canary.domain.step import step
from canary.flow.tools.case_files import Case, GateCase, Given, cases_path, load_cases
from canary.flow.tools.policy_files import load
from canary.flow.tools.yaml_nodes import nearest

NOW = 1_000_000.0
ROLES: Mapping[str, GateRole] = {
    **dict.fromkeys(("losslessness", "errors", "structured_validity"), GateRole.SAFETY),
    **dict.fromkeys(
        ("acceptance", "acceptance_drift", "speed", "ttft", "ttft_tail", "memory", "task_success", "thumbs"), GateRole.ECONOMY
    ),
    **dict.fromkeys(("bank_certificate", "pit_certificate", "request_certificate", "row_gate", "outliers"), GateRole.EQUIVALENCE),
    **dict.fromkeys(("gap_certificate", "request_certificate_greedy", "outlier_requests", "strata"), GateRole.EQUIVALENCE),
    "drill": GateRole.EQUIVALENCE,
    **dict.fromkeys(("baseline", "control", "sample_ratio", "completeness"), GateRole.HARNESS),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case at one place: what was expected and what came; `problems` is empty where they agree."""

    case: str
    place: str
    row: int
    decision: str
    reason: str
    weight: int
    sentence: str
    problems: tuple[str, ...]


def run_file(policy_path: Path) -> list[Outcome]:
    """Run a policy's golden cases, each at each of its places.

    Raises:
        PolicyError: the policy or its cases are wrong or missing.
    """
    policy, path = load(policy_path), cases_path(policy_path)
    found = load_cases(path)
    try:
        return [_run(policy, found.gates, case, place) for case in found.cases for place in case.expect]
    except PolicyError as error:
        raise PolicyError(error.detail, where=f"{path}: {error.where}", remedy=error.remedy) from error


def rollout_at(policy: Policy, place: str, given: Given) -> Rollout:
    """The rollout that a place and a situation describe.

    Raises:
        PolicyError: there is no such place.
    """
    names = [s.name for s in policy.stages]
    held = place.startswith("held at ")
    stage = place.removeprefix("held at ")
    resting = {State.PENDING, State.ROLLED_BACK, State.ARCHIVED}
    if stage in names:
        index = names.index(stage)
        state = State.HELD if held else State(stage) if stage in ("shadow", "full") else State.CANARY
    elif place in resting:
        index, state = 0, State(place)
    else:
        known = [*(s.value for s in resting), *names, *(f"held at {n}" for n in names)]
        raise PolicyError(
            f"unknown place {place!r}.", where="expect", remedy=f"{nearest(place, known)}Known: {', '.join(known)}."
        )
    return Rollout(
        route=policy.route,
        policy_hash=policy.content_hash,
        state=state,
        stage=index,
        epoch="epoch",
        attempt=1,
        entered_at=NOW - given.in_stage,
        baked_seconds=given.baked,
        assessed_at=NOW,
        errors=given.errors,
        killed=given.killed,
        reason="given",
        rollbacks=given.rollbacks,
        cool_until=NOW + given.cooling if given.cooling else 0.0,
        asked_at=0.0 if given.asked is None else NOW - given.asked,
        approved_at=0.0 if given.approved is None else NOW - given.approved,
        approved_by="" if given.approved is None else "somebody",
    )


def evidence_of(policy: Policy, gates: Mapping[str, GateCase], given: Given) -> Evidence | None:
    """The evidence that a situation describes.

    Raises:
        PolicyError: a gate's name is unknown.
    """
    if given.evidence == "none":
        return None
    merged = {name: gate for name, gate in {**gates, **given.gates}.items() if gate.verdict != "absent"}
    return Evidence(
        route=policy.route,
        epoch="epoch" if given.evidence == "current" else "another epoch",
        attempt=1,
        folded=given.pairs,
        num_pairs=given.pairs,
        num_failed=0,
        gates=tuple(_gate(name, gate, given.pairs) for name, gate in merged.items()),
        subject="epoch",
        engine="epoch" if given.engine == "subject" else "another engine",
        assessed_at=NOW,
        newest_pair_at=NOW - given.newest_pair if given.pairs else None,
    )


def _gate(name: str, gate: GateCase, pairs: int) -> GateEvidence:
    plain = name.removeprefix("live ")
    if plain not in ROLES:
        remedy = f"{nearest(plain, ROLES)}Known: {', '.join(ROLES)}."
        raise PolicyError(f"unknown gate {name!r}.", where=f"gates.{name}", remedy=remedy)
    made = GateEvidence(plain, ROLES[plain], Verdict(gate.verdict), gate.reason or gate.verdict, "", n=pairs)
    details = {} if gate.component_fired is None else {"component_fired": gate.component_fired}
    source = Source.LIVE if name != plain else Source.SHADOW
    return replace(made, value=gate.value, threshold=gate.threshold, needed=gate.needed, source=source, details=details)


def _run(policy: Policy, gates: Mapping[str, GateCase], case: Case, place: str) -> Outcome:
    rollout = rollout_at(policy, place, case.given)
    decision = decide(rollout, policy, evidence_of(policy, gates, case.given), NOW, manual_kill=case.given.manual_kill)
    stepped = step(rollout, policy, decision, NOW)
    expected, missing = case.expect[place], [m.gate for m in decision.missing]
    got = {"decision": decision.kind.value, "reason": decision.reason, "weight": stepped.flag_weight}
    want = {"decision": expected.decision, "reason": expected.reason, "weight": expected.weight}
    if case.row is not None:
        got["row"], want["row"] = decision.row, case.row
    problems = [f"{key} is {got[key]}, expected {want[key]}" for key in want if got[key] != want[key]]
    problems += [f"{name} is not named as missing" for name in case.missing or () if name not in missing]
    return Outcome(
        case=case.name,
        place=place,
        row=decision.row,
        decision=decision.kind.value,
        reason=decision.reason,
        weight=stepped.flag_weight,
        sentence=decision.sentence,
        problems=tuple(problems),
    )
