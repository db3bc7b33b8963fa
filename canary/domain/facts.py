"""What the truth table asks about: one rollout's situation, computed once from the evidence, the policy and the clock.

Doubt is resolved here and always towards less: evidence of another epoch or attempt counts as none, a missing gate has no data,
and what an engine that is not the subject found is never proof. A drill's economy is no question: it never takes traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from canary.domain.errors import PolicyError
from canary.domain.evidence import Evidence, GateEvidence, GateRole, Source, Verdict
from canary.domain.modes import Mode
from canary.domain.policy import Approval, Policy, Stage
from canary.domain.rollout import Rollout, State

BASELINE_GATE = "baseline"  # harness gate that fails when the baseline arm itself is failing
RATIO_GATE = "sample_ratio"  # harness gate that fails on a sample-ratio mismatch; it blocks an advance and nothing else
LOSSLESSNESS = "losslessness"
CHANGE_ALARM = "change_alarm"  # reason of the change gate while an alarm is being confirmed
CHANGE_GATE = "change"  # safety gate that watches a full route; before full nothing asks for it
DRIFT_GATE = "acceptance_drift"  # economy gate that watches a full route; the live one is asked where a stage names it
REQUIRED_GATES = {LOSSLESSNESS: GateRole.SAFETY, "acceptance": GateRole.ECONOMY, "speed": GateRole.ECONOMY}
RESTING = (State.PENDING, State.ROLLED_BACK, State.ARCHIVED)


@dataclass(frozen=True, slots=True)
class Missing:
    """One gate that does not pass yet.

    Args:
        reason: its own stable code, or `no_data` where the evidence lacks it.
        needed: further `unit`s until it can pass; None if unknown.
    """

    gate: str
    verdict: Verdict
    reason: str
    needed: int | None = None
    unit: str = "requests"


@dataclass(frozen=True, slots=True)
class Facts:
    """One assessment's situation.

    Args:
        gates: as found, with what is not about the subject turned to inconclusive, and without a drill's economy, which nobody
            times; empty without evidence of this attempt.
        missing: required gates that do not pass, most needed first.
        age: seconds since the newest pair; None without one.
        stale: there is no pair at all or none young enough.
        waiting: seconds in the stage without data, by the newest pair or, where a gate alone has none, by what it heard last.
        manual_kill: why a person or a kill file kills; None if nobody does.
        aside: gates that the policy only observes or warns by, or asks for later.
    """

    rollout: Rollout
    policy: Policy
    stage: Stage
    gates: tuple[GateEvidence, ...]
    missing: tuple[Missing, ...]
    num_pairs: int
    age: float | None
    stale: bool
    waiting: float
    now: float
    manual_kill: str | None
    aside: tuple[GateEvidence, ...] = ()

    @classmethod
    def of(cls, rollout: Rollout, policy: Policy, evidence: Evidence | None, now: float, manual_kill: str | None) -> Facts:
        """See the arguments of `decide`."""
        if evidence is not None and (evidence.epoch, evidence.attempt) != (rollout.epoch, rollout.attempt):
            evidence = None
        stage = stage_of(rollout, policy)
        drill = policy.subject.fault is not None
        found = [g for g in evidence.gates if not (drill and g.role is GateRole.ECONOMY)] if evidence else []
        asked = [g for g in found if _counts(g, policy, stage)]
        aside = tuple(g for g in found if not _counts(g, policy, stage))
        gates = tuple(_about_subject(g, evidence) for g in asked) if evidence else ()
        newest = evidence.newest_pair_at if evidence and evidence.num_pairs else None
        age = None if newest is None else now - newest
        missing = _missing(gates, stage, drill=drill)
        stale = age is None or age > policy.limits.fresh_seconds
        since = max(rollout.entered_at, newest or 0.0 if stale else _silent_since(gates))
        num_pairs = evidence.num_pairs if evidence else 0
        return cls(rollout, policy, stage, gates, missing, num_pairs, age, stale, now - since, now, manual_kill, aside)

    def failing(self, *roles: GateRole) -> list[GateEvidence]:
        """Gates of these roles that fail, live ones first."""
        found = [g for g in self.gates if g.role in roles and g.verdict is Verdict.FAIL]
        return sorted(found, key=lambda g: g.source is not Source.LIVE)

    @property
    def missing_data(self) -> bool:
        """No fresh evidence of this attempt, or a required gate without data."""
        return self.stale or any(m.verdict is Verdict.NO_DATA for m in self.missing)

    @property
    def no_data_too_long(self) -> bool:
        return self.missing_data and self.waiting > self.policy.limits.no_data_seconds

    @property
    def could_not_measure(self) -> bool:
        return any(g.verdict is Verdict.ERROR for g in self.gates)

    @property
    def errors(self) -> int:
        """Assessments in a row that could not measure, this one included."""
        return self.rollout.errors + 1 if self.could_not_measure else 0

    @property
    def changed(self) -> bool:
        """The change detector has raised an alarm that is not confirmed yet."""
        return any(g.gate == CHANGE_GATE and g.reason == CHANGE_ALARM for g in self.gates)

    @property
    def all_pass(self) -> bool:
        """Every required gate was measured and passes, on fresh evidence; the one way to an advance."""
        measured = bool(self.gates) and all(g.verdict is Verdict.PASS for g in self.gates)
        return measured and not self.missing and not self.stale

    @property
    def baking(self) -> float:
        """Healthy seconds that the stage still has to bake; nothing bakes at full."""
        return 0.0 if self.stage.name == "full" else max(0.0, self.stage.bake_seconds - self.rollout.baked_seconds)

    @property
    def cooling(self) -> float:
        """Seconds until the cool-down of an earlier rollback is over; only the step out of the shadow waits for it."""
        return max(0.0, self.rollout.cool_until - self.now) if self.stage.name == "shadow" else 0.0

    @property
    def approval(self) -> Approval | None:
        """What the next stage asks of a person, None where it asks nothing; the last stage has no next one."""
        return asked_approval(self.rollout, self.policy)

    @property
    def approved(self) -> bool:
        """Whether a person's agreement to the next stage is still good, or none is asked."""
        return self.approval is None or approved_until(self.rollout, self.approval) > self.now

    @property
    def denied(self) -> bool:
        """Whether nobody has answered in time."""
        asked = self.rollout.asked_at
        return self.approval is not None and not self.approved and 0 < asked <= self.now - self.approval.within_seconds

    @property
    def expired(self) -> bool:
        """Whether a shadow has used up its requests."""
        return self.stage.name == "shadow" and self.num_pairs >= self.policy.limits.max_requests

    @property
    def waited_too_long(self) -> bool:
        return self.now - self.rollout.entered_at > self.policy.limits.max_hold_seconds


def _silent_since(gates: Sequence[GateEvidence]) -> float:
    """When the gates without data last had some, 0 if one never had: live traffic that falls silent is waited for anew."""
    silent = [g for g in gates if g.verdict is Verdict.NO_DATA]
    heard = [g.details.get("newest_at") if g.source is Source.LIVE else None for g in silent]
    return min((at if isinstance(at, float) else 0.0 for at in heard), default=0.0)


def stage_of(rollout: Rollout, policy: Policy) -> Stage:
    """The policy's stage that a rollout stands at.

    Raises:
        PolicyError: the rollout and the policy do not belong together.
    """
    last = len(policy.stages) - 1
    allowed = {State.SHADOW: range(1), State.CANARY: range(1, last), State.FULL: range(last, last + 1)}
    if rollout.stage not in allowed.get(rollout.state, range(last + 1)):
        raise PolicyError(
            f"a rollout in state {rollout.state.value} cannot stand at stage {rollout.stage} of {last + 1}",
            where=f"rollouts/{rollout.route}",
            remedy="Decide with the policy that the rollout has pinned.",
        )
    return policy.stages[rollout.stage]


def cooled_at(rollout: Rollout, policy: Policy) -> float:
    """When a rolled back rollout may be tried again, seconds since the epoch."""
    return max(rollout.cool_until, rollout.entered_at + policy.limits.cooldown_of(rollout.rollbacks))


def asked_approval(rollout: Rollout, policy: Policy) -> Approval | None:
    """What the stage after a rollout's own asks of a person; None where it asks nothing or there is none."""
    last = rollout.stage >= len(policy.stages) - 1
    return None if last else policy.stages[rollout.stage + 1].approval


def approved_until(rollout: Rollout, approval: Approval) -> float:
    """Until when a given agreement is good, seconds since the epoch; 0 without one."""
    return rollout.approved_at + approval.within_seconds if rollout.approved_by else 0.0


def _counts(gate: GateEvidence, policy: Policy, stage: Stage) -> bool:
    """Whether a gate is asked at this stage; a live gate always is, since the stage itself names it."""
    if gate.gate == CHANGE_GATE:
        return stage.name == "full"
    mode = policy.gates.mode_of(gate.gate)
    if gate.gate == DRIFT_GATE and gate.source is not Source.LIVE:
        return stage.name == "full" and mode in (Mode.REQUIRED, Mode.BEFORE_FULL)
    if gate.source is Source.LIVE or mode is Mode.REQUIRED:
        return True
    return mode is Mode.BEFORE_FULL and (gate.verdict is Verdict.FAIL or stage in policy.stages[-2:])


def _about_subject(gate: GateEvidence, evidence: Evidence) -> GateEvidence:
    """A shadow proof of losslessness by an engine that is not the subject proves nothing about the subject (DESIGN section 5)."""
    proof = gate.role in (GateRole.SAFETY, GateRole.EQUIVALENCE)
    if not proof or gate.source is not Source.SHADOW or evidence.engine == evidence.subject:
        return gate
    sentence = f"the shadow ran on {evidence.engine}, the flag turns on {evidence.subject}"
    return replace(gate, verdict=Verdict.INCONCLUSIVE, reason="not_the_subject", sentence=sentence, needed=None)


def _missing(gates: Sequence[GateEvidence], stage: Stage, *, drill: bool) -> tuple[Missing, ...]:
    """Gates present that do not pass, and required ones that are absent."""
    required = {name: role for name, role in REQUIRED_GATES.items() if not (drill and role is GateRole.ECONOMY)}
    lacking = [Missing(g.label, g.verdict, g.reason, g.needed, g.unit) for g in gates if g.verdict is not Verdict.PASS]
    absent = [name for name, role in required.items() if not any(g.gate == name and g.role is role for g in gates)]
    if not any(g.role is GateRole.EQUIVALENCE for g in gates):
        absent.append(GateRole.EQUIVALENCE.value)
    live = {g.gate for g in gates if g.source is Source.LIVE}
    absent += [f"live {name}" for name in stage.live if name not in live]
    lacking += [Missing(name, Verdict.NO_DATA, "no_data") for name in absent]
    return tuple(sorted(lacking, key=lambda m: (-(m.needed or 0), m.gate)))
