"""How a decision, a person or a new epoch changes a rollout's row and the weight of its flag; pure, and the only place that does.

It never looks at evidence: `decide` did. An advance is exactly one stage, and nothing here undoes a kill but `unkill`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from canary.domain.decide import Decision, Kind
from canary.domain.errors import ConflictError, KilledError, UsageError
from canary.domain.facts import stage_of
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout, State

RAMP_ABOVE = 5_000  # basis points: the baseline fleet may be scaled down above half of the traffic


@dataclass(frozen=True, slots=True)
class Step:
    """What one transaction writes.

    Args:
        rollout: the new row, version risen by one.
        flag_weight: basis points for the flag; 0 once killed or rolled back, falling during a ramp.
        killed: the flag's kill switch; stays off until a kill's ramp has ended, since the switch beats the weight.
        kill_reason: stable code and sentence; "" unless the rollout is killed.
        audit: (kind, body as plain JSON values) of what moved; empty where only clocks did. A ramp moves the weight without one.
    """

    rollout: Rollout
    flag_weight: int
    killed: bool
    kill_reason: str
    audit: tuple[tuple[str, Mapping[str, object]], ...]


def step(rollout: Rollout, policy: Policy, decision: Decision, now: float) -> Step:
    """Act on a decision.

    Args:
        rollout: the row that was decided on.
        policy: the policy that decided.
        now: the same clock as the decision's.

    Raises:
        PolicyError: the rollout's stage does not exist in this policy.
    """
    stage_of(rollout, policy)
    new = _assessed(rollout, policy, decision, now)
    why = f"{decision.cause or decision.reason}: {decision.sentence}"
    if decision.kind is Kind.KILL:
        new = _kill(new, policy, decision, now, why)
    elif rollout.killed:
        raise KilledError("a killed rollout takes no decision but a kill", where=f"rollouts/{rollout.route}")
    elif decision.kind is Kind.ADVANCE:
        new = replace(_enter(new, policy, rollout.stage + 1, now), reason=why)
    elif decision.kind is Kind.ROLL_BACK:
        new = _roll_back(new, policy, now, why, ramp=decision.ramp)
    elif decision.kind is Kind.HOLD and rollout.state is not State.HELD:
        new = replace(new, state=State.HELD, reason=why)
    elif rollout.state in (State.SHADOW, State.CANARY, State.FULL):
        new = replace(new, reason=why)
    return _written(rollout, new, policy, now, decision.kind.value, decision.reason)


def new_epoch(rollout: Rollout, epoch: str, policy: Policy, now: float, *, attempt: int = 1) -> Step:
    """An engine announced an epoch; the first starts the shadow, an unplanned change takes traffic off by the policy's rules.

    Args:
        epoch: fingerprint of the subject as it runs now.
        attempt: the one to open in it; above 1 where the route has been in this epoch before.

    Raises:
        UsageError: the epoch is empty.
    """
    if not epoch:
        raise UsageError("an epoch must not be empty", where=f"rollouts/{rollout.route}")
    if rollout.state is State.PENDING or (rollout.state is State.SHADOW and not rollout.epoch):
        begun = _enter(rollout, policy, 0, now)
        why = f"shadow: epoch {epoch} was announced"
        new = replace(begun, epoch=epoch, attempt=max(rollout.attempt, attempt), reason=why)
        return _written(rollout, new, policy, now, "new_epoch", "announced")
    if rollout.epoch == epoch or rollout.state is State.ARCHIVED:
        return _written(rollout, rollout, policy, now, "new_epoch", "unchanged")
    why = f"epoch_changed: the subject changed from {rollout.epoch or 'nothing'} to {epoch}; evidence starts again"
    new = replace(rollout, epoch=epoch, attempt=attempt, baked_seconds=0.0, errors=0, assessed_at=None)
    weight = policy.stages[rollout.stage].weight
    if rollout.killed or rollout.state is State.ROLLED_BACK:
        pass
    elif weight == 0:
        new = replace(new, entered_at=now, reason=rollout.reason if rollout.state is State.HELD else why)
    elif policy.stages[rollout.stage].name != "full" or policy.on_drift == "baseline":
        new = _roll_back(new, policy, now, why, ramp=True)
    else:
        new = replace(new, entered_at=now, reason=why)
    return _written(rollout, new, policy, now, "new_epoch", "epoch_changed")


def unkill(rollout: Rollout, policy: Policy, now: float, *, reason: str = "a person lifted the kill") -> Step:
    """A person lifts the kill: back to shadow, with the next attempt.

    Args:
        reason: the person's own words, where the caller has not put them in the audit log already.

    Raises:
        UsageError: the reason is blank.
        ConflictError: the rollout is not killed.
    """
    if not rollout.killed:
        raise ConflictError("the route is not killed", where=f"rollouts/{rollout.route}", remedy="Nothing to undo.")
    return _again(rollout, policy, now, "unkill", reason)


def retry(rollout: Rollout, policy: Policy, now: float, *, reason: str) -> Step:
    """A person opens the next attempt of a rolled back or held rollout, in shadow.

    Raises:
        UsageError: no reason given.
        KilledError: lift the kill first.
        ConflictError: neither rolled back nor held, or the cool-down is not over.
    """
    where = f"rollouts/{rollout.route}"
    if rollout.killed:
        raise KilledError("the route is killed", where=where, remedy="Lift the kill with a reason; that opens the next attempt.")
    if rollout.state not in (State.ROLLED_BACK, State.HELD):
        raise ConflictError(f"a rollout in state {rollout.state.value} has nothing to retry", where=where)
    left = rollout.entered_at + policy.limits.cooldown_seconds - now
    if rollout.state is State.ROLLED_BACK and left > 0:
        raise ConflictError(f"the cool-down ends in {left:.0f} s", where=where, remedy="Retry then.")
    return _again(rollout, policy, now, "retry", reason)


def resume(rollout: Rollout, policy: Policy, now: float, *, reason: str) -> Step:
    """A person lets a held rollout go on in the stage where it stopped; its clocks start again, its evidence stays.

    Raises:
        UsageError: no reason given.
        ConflictError: the rollout is not held.
    """
    if rollout.state is not State.HELD or rollout.killed:
        raise ConflictError(f"a rollout in state {rollout.state.value} is not held", where=f"rollouts/{rollout.route}")
    new = replace(_enter(rollout, policy, rollout.stage, now), reason=f"resumed: {_need(reason, rollout)}")
    return _written(rollout, new, policy, now, "resume", "resumed")


def weight_of(rollout: Rollout, policy: Policy, now: float) -> int:
    """Basis points of traffic that a rollout's candidate gets now.

    0 at rest or killed, the stage's weight otherwise; during a ramp it falls in a straight line to 0.
    """
    if rollout.killed or rollout.state is State.ROLLED_BACK:
        if now >= rollout.ramp_end:
            return 0
        left = (rollout.ramp_end - now) / (rollout.ramp_end - rollout.ramp_start)
        return math.floor(rollout.ramp_weight * min(1.0, left))
    if rollout.state in (State.PENDING, State.ARCHIVED):
        return 0
    return policy.stages[rollout.stage].weight


def _assessed(rollout: Rollout, policy: Policy, decision: Decision, now: float) -> Rollout:
    """Move the clocks: the bake counts healthy intervals between assessments, and of a gap at most `bake_gap_seconds`.

    `assessed_at` never goes back: two control loops whose clocks differ would otherwise count the same seconds again and again.
    """
    baked = rollout.baked_seconds
    if decision.healthy and rollout.assessed_at is not None and rollout.state in (State.SHADOW, State.CANARY, State.FULL):
        baked += min(max(0.0, now - rollout.assessed_at), policy.limits.bake_gap_seconds)
    measured = decision.row not in (1, 7)
    errors = rollout.errors + 1 if decision.could_not_measure else 0 if measured else rollout.errors
    assessed_at = now if rollout.assessed_at is None else max(now, rollout.assessed_at)
    return replace(rollout, assessed_at=assessed_at, baked_seconds=baked, errors=errors)


def _enter(rollout: Rollout, policy: Policy, stage: int, now: float) -> Rollout:
    state = State.SHADOW if stage == 0 else State.FULL if stage == len(policy.stages) - 1 else State.CANARY
    return replace(
        rollout,
        state=state,
        stage=stage,
        entered_at=now,
        baked_seconds=0.0,
        errors=0,
        ramp_weight=0,
        ramp_start=0.0,
        ramp_end=0.0,
    )


def _kill(rollout: Rollout, policy: Policy, decision: Decision, now: float, why: str) -> Rollout:
    """Switch off; a kill that tolerates no delay (manual, live errors) also ends a ramp that is under way."""
    if not rollout.killed:
        off = _off(rollout, policy, now, ramp=decision.ramp)
        return replace(off, killed=True, reason=why)
    if now < rollout.ramp_end and decision.reason in ("manual_kill", "live_errors"):
        return replace(rollout, ramp_weight=0, ramp_start=0.0, ramp_end=0.0, reason=why)
    return rollout


def _roll_back(rollout: Rollout, policy: Policy, now: float, why: str, *, ramp: bool) -> Rollout:
    off = _off(rollout, policy, now, ramp=ramp)
    return replace(off, state=State.ROLLED_BACK, entered_at=now, baked_seconds=0.0, reason=why)


def _off(rollout: Rollout, policy: Policy, now: float, *, ramp: bool) -> Rollout:
    """Start a ramp from the present weight where it is asked for, above half of the traffic and takes time."""
    weight, seconds = weight_of(rollout, policy, now), policy.limits.kill_ramp_seconds
    if ramp and weight > RAMP_ABOVE and seconds > 0:
        return replace(rollout, ramp_weight=weight, ramp_start=now, ramp_end=now + seconds)
    return replace(rollout, ramp_weight=0, ramp_start=0.0, ramp_end=0.0)


def _again(rollout: Rollout, policy: Policy, now: float, kind: str, reason: str) -> Step:
    """Shadow once more, with the next attempt."""
    if rollout.state is State.ARCHIVED:
        raise ConflictError("the rollout is archived", where=f"rollouts/{rollout.route}", remedy="Apply a policy to start again.")
    state = State.SHADOW if rollout.epoch else State.PENDING
    new = replace(_enter(rollout, policy, 0, now), state=state, attempt=rollout.attempt + 1, assessed_at=None, killed=False)
    return _written(rollout, replace(new, reason=f"{kind}: {_need(reason, rollout)}"), policy, now, kind, kind)


def _need(reason: str, rollout: Rollout) -> str:
    if not reason.strip():
        raise UsageError("a reason is needed", where=f"rollouts/{rollout.route}", remedy="Say why, for the audit log.")
    return reason.strip()


def _written(old: Rollout, new: Rollout, policy: Policy, now: float, kind: str, reason: str) -> Step:
    if new != old:
        new = replace(new, version=old.version + 1)
    weight = weight_of(new, policy, now)
    watched = ("state", "stage", "epoch", "attempt", "killed")
    before, after = ({name: getattr(r, name) for name in watched} for r in (old, new))
    body = {"reason": reason, "before": before, "after": after, "weight": weight, "version": new.version}
    return Step(
        rollout=new,
        flag_weight=weight,
        killed=new.killed and weight == 0,
        kill_reason=new.reason if new.killed else "",
        audit=((kind, body),) if before != after else (),
    )
