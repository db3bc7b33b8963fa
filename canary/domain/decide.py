"""What to do with one route now: a pure, total function of the rollout, its policy, the evidence and the clock.

It decides and explains; `step` acts on it. Unknown never advances: only evidence that is present, fresh, about the subject
and passing does.
"""

from __future__ import annotations

from dataclasses import dataclass

from canary.domain.evidence import Evidence, GateEvidence, GateRole, Verdict
from canary.domain.facts import BASELINE_GATE, CHANGE_GATE, RATIO_GATE, RESTING, Facts, Missing, cooled_at
from canary.domain.modes import Mode
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout, State
from canary.domain.truth_table import ROWS, Kind, Row

__all__ = ["Decision", "Kind", "Missing", "decide", "describe"]

MOST_NAMED = 4  # lacking gates that a sentence names; the decision itself holds all


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and why.

    Args:
        row: row of the truth table that decided, 1 to 9.
        reason: stable code of the row's case; in a state of rest, the state's own (`pending`, `rolled_back`, `cool_down`,
            `attempts_used_up`, `archived`).
        sentence: the reason in words, with value, threshold, interval and n of the gate that decided.
        gate, cause: the gate that decided and its own reason code (e.g. the suspected fault); "" where none did.
        missing: gates that do not pass yet, with what they need.
        notes: what must be said wherever the verdict is shown (quick look, carried economy, waived live gates).
        page: a person is to be called.
        ramp: weight above half of the traffic comes down over `kill_ramp_seconds`.
        healthy: the time since the last assessment counts towards the bake.
        could_not_measure: a gate met an error in this assessment.
    """

    kind: Kind
    row: int
    reason: str
    sentence: str
    gate: str = ""
    cause: str = ""
    missing: tuple[Missing, ...] = ()
    notes: tuple[str, ...] = ()
    page: bool = False
    ramp: bool = False
    healthy: bool = False
    could_not_measure: bool = False


def decide(
    rollout: Rollout, policy: Policy, evidence: Evidence | None, now: float, *, manual_kill: str | None = None
) -> Decision:
    """Decide one route.

    Args:
        rollout: where it stands.
        policy: the one that the rollout has pinned.
        evidence: as folded so far; None, or of another epoch or attempt, counts as no data.
        now: seconds since the epoch.
        manual_kill: why a person or a kill file kills the route; None if nobody does.

    Raises:
        PolicyError: the rollout's stage does not exist in this policy.
    """
    facts = Facts.of(rollout, policy, evidence, now, manual_kill)
    row = next(r for r in ROWS if r.when(facts))
    action = row.action(facts)
    gate = _deciding_gate(facts, row)
    reason, sentence = row.case, _sentence(facts, row, action.kind, gate)
    if rollout.state in RESTING and action.kind is Kind.STAY:
        reason, sentence = _resting(facts)
    return Decision(
        kind=action.kind,
        row=row.number,
        reason=reason,
        sentence=sentence,
        gate=gate.gate if gate else "",
        cause=gate.reason if gate else "",
        missing=facts.missing,
        notes=_notes(facts),
        page=action.page,
        ramp=action.ramp,
        healthy=row.number >= 8 and not facts.missing_data and not facts.could_not_measure,
        could_not_measure=facts.could_not_measure,
    )


def describe(gate: GateEvidence) -> str:
    """A gate's finding with its numbers: value, threshold, interval and n."""
    parts = [f"{gate.gate} ({gate.reason})"]
    if gate.value is not None:
        parts.append(f"is {gate.value:.4g}")
    if gate.threshold is not None:
        parts.append(f"against {gate.threshold:.4g}")
    if gate.low is not None or gate.high is not None:
        low, high = (f"{b:.4g}" if b is not None else "unbounded" for b in (gate.low, gate.high))
        parts.append(f"[{low} to {high}]")
    parts.append(f"over {gate.n} {gate.unit} ({gate.source.value})")
    return " ".join(parts) + (f": {gate.sentence.rstrip('.')}" if gate.sentence else "")


def _deciding_gate(facts: Facts, row: Row) -> GateEvidence | None:
    """The gate that made a row match, None for rows about time, people or the whole."""
    if row.number == 2:
        return next(g for g in facts.failing(GateRole.HARNESS) if g.gate == BASELINE_GATE)
    if row.number == 3:
        return next(g for g in facts.failing(GateRole.HARNESS) if g.gate not in (BASELINE_GATE, RATIO_GATE))
    if row.number == 4 or row.case == "live_errors":
        return facts.failing(GateRole.SAFETY)[0]
    if row.number == 5:
        return facts.failing(GateRole.ECONOMY)[0]
    if row.case == "change_alarm":
        return next(g for g in facts.gates if g.gate == CHANGE_GATE)
    if row.number == 6:
        return next(g for g in facts.gates if g.verdict is Verdict.ERROR)
    return None


def _sentence(facts: Facts, row: Row, kind: Kind, gate: GateEvidence | None) -> str:
    found = describe(gate) if gate else ""
    limits, stage = facts.policy.limits, facts.stage.name
    watching = "; keep watching" if stage == "full" else ""
    age = "no pair has been folded" if facts.age is None else f"the newest pair is {facts.age:.0f} s old"
    waited = f"{facts.waiting:.0f} s without data in stage {stage}, the limit is {limits.no_data_seconds:.0f} s; {age}"
    words = {
        "manual_kill": f"Killed by hand: {facts.manual_kill or 'no reason was given'}",
        "killed": f"The kill switch is on: {facts.rollout.reason or 'no reason was recorded'}",
        "baseline_failing": f"The baseline itself is failing, so there is nothing safe to go back to: {found}",
        "harness_broken": f"The measuring is broken, so losslessness proves nothing now: {found}",
        "inside_margin": f"A difference is proven but lies inside every certified margin; a person decides: {found}",
        "live_errors": f"The candidate fails on live traffic: {found}",
        "safety_failed": f"The candidate is not safe: {found}",
        "not_worth_it_live": f"Not worth it on live traffic: {found}",
        "not_worth_it": f"Not worth it: {found}",
        "could_not_measure": f"Could not measure {facts.errors} times in a row (limit {limits.max_errors}): {found}",
        "no_data_to_baseline": f"No data for too long: {waited}",
        "no_data_too_long": f"No data for too long: {waited}",
        "no_pairs": f"No data yet: no pair of attempt {facts.rollout.attempt} has been folded",
        "stale": f"No fresh data: {age}, evidence is stale after {limits.fresh_seconds:.0f} s",
        "no_data": f"No data yet: {_lacking(facts)}",
        "expired": f"Inconclusive after {facts.num_pairs} requests, the limit is {limits.max_requests}: {_lacking(facts)}",
        "waited_too_long": f"Inconclusive for over {limits.max_hold_seconds:.0f} s in stage {stage}: {_lacking(facts)}",
        "change_alarm": f"The output may have changed since the promotion; a confirmation is under way: {found}",
        "not_yet": f"Not yet: {_lacking(facts)}",
        "baking": f"All gates pass; {facts.baking:.3g} s of {facts.stage.bake_seconds:.3g} s in stage {stage} are still to bake",
        "drill_not_caught": f"The injected fault {facts.policy.subject.fault} was not caught in {facts.num_pairs} requests, "
        "so a pass proves nothing; a drill never takes traffic",
        "cooling_down": f"All gates pass; the cool-down of the last rollback ends in {facts.cooling:.0f} s",
        "approval_expired": f"Nobody approved the next stage in {_within(facts)}: it is denied",
        "awaiting_approval": f"All gates pass; the next stage waits for a person's approval, for {_within(facts)} at most",
        "all_pass": f"All {len(facts.gates)} gates pass over {facts.num_pairs} pairs" + watching,
    }
    tail = "; held until a person resumes" if kind is Kind.HOLD and facts.rollout.state is State.HELD else ""
    return words[row.case].rstrip(".") + tail + "."


def _within(facts: Facts) -> str:
    return f"{facts.approval.within_seconds:.0f} s" if facts.approval else "no time"


def _lacking(facts: Facts) -> str:
    """What is missing, the longest wait first: `120 more requests for bank_certificate (too_few); row_gate is no_data`."""
    parts = []
    for m in facts.missing[:MOST_NAMED]:
        need = f"{m.needed} more {m.unit} for {m.gate}" if m.needed else f"{m.gate} is {m.verdict.value}"
        parts.append(f"{need} ({m.reason})" if m.reason and m.reason != m.verdict.value else need)
    if len(facts.missing) > MOST_NAMED:
        parts.append(f"and {len(facts.missing) - MOST_NAMED} more")
    return "; ".join(parts) if parts else "no gate was assessed"


def _resting(facts: Facts) -> tuple[str, str]:
    """Reason and sentence of a rollout that nothing is decided about."""
    rollout = facts.rollout
    if rollout.state is State.PENDING:
        return "pending", "No engine has announced this route's epoch yet."
    if rollout.state is State.ARCHIVED:
        return "archived", "The rollout is archived."
    limits = facts.policy.limits
    left = cooled_at(rollout, facts.policy) - facts.now
    why = rollout.reason.rstrip(".") or "no reason was recorded"
    if rollout.rollbacks >= limits.max_attempts:
        used = f"{rollout.rollbacks} of {limits.max_attempts} attempts of this epoch were rolled back"
        return "attempts_used_up", f"Rolled back; {used}, so that only a new engine or policy is tried: {why}."
    if left > 0:
        return "cool_down", f"Rolled back; the next attempt may start in {left:.0f} s: {why}."
    return "rolled_back", f"Rolled back; a retry opens the next attempt: {why}."


def _notes(facts: Facts) -> tuple[str, ...]:
    policy, notes = facts.policy, []
    if policy.quick_look:
        notes.append("quick look: wide margins")
    if policy.economy == "carry" and facts.rollout.stage > 0:
        notes.append("economy carried from shadow")
    if facts.stage.live_waived:
        notes.append(f"live gates waived: {facts.stage.live_waived}")
    if policy.subject.fault:
        notes.append(f"drill with injected fault {policy.subject.fault}")
    if any(g.details.get("inside_margin") is True for g in facts.failing(GateRole.SAFETY)):
        notes.append("inside_margin: the proven difference lies inside every certified margin")
    if not policy.shadow.control_rate:
        notes.append("no A/A pairs: nothing tests the harness itself")
    return (*notes, *_of_modes(facts))


def _of_modes(facts: Facts) -> list[str]:
    """What the policy chose not to ask of a gate, and what the gates that only warn have found."""
    notes = [f"{m.gate} counts as {m.mode.value}: {m.why}" for m in facts.policy.gates.modes if m.mode is not Mode.REQUIRED]
    for each in facts.policy.gates.strata:
        notes.append(f"{each.stratum} certificates count as {each.mode.value}, the flag leaves such requests out: {each.why}")
    for gate in facts.aside:
        if facts.policy.gates.mode_of(gate.gate) is Mode.WARN and gate.verdict is Verdict.FAIL:
            notes.append(f"warning: {describe(gate)}")
    return notes
