"""How a decision or a new epoch changes a rollout's row and the weight of its flag; pure. What persons order is `orders`.

It never looks at evidence: `decide` did. An advance is exactly one stage, and nothing here undoes a kill.
"""

from __future__ import annotations

from dataclasses import replace

from canary.domain.decide import Decision, Kind
from canary.domain.errors import KilledError, UsageError
from canary.domain.facts import stage_of
from canary.domain.moves import Step as Step
from canary.domain.moves import enter, off, roll_back, written
from canary.domain.moves import weight_of as weight_of
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout, State


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
        new = replace(enter(new, policy, rollout.stage + 1, now), reason=why)
    elif decision.kind is Kind.ROLL_BACK:
        new = roll_back(new, policy, now, why, ramp=decision.ramp)
    elif decision.kind is Kind.HOLD and rollout.state is not State.HELD:
        new = replace(new, state=State.HELD, reason=why)
    elif rollout.state in (State.SHADOW, State.CANARY, State.FULL):
        waits = decision.reason == "awaiting_approval" and rollout.asked_at == 0
        new = replace(new, reason=why, asked_at=now if waits else rollout.asked_at)
    return written(rollout, new, policy, now, decision.kind.value, decision.reason)


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
        begun = enter(rollout, policy, 0, now)
        why = f"shadow: epoch {epoch} was announced"
        new = replace(begun, epoch=epoch, attempt=max(rollout.attempt, attempt), reason=why)
        return written(rollout, new, policy, now, "new_epoch", "announced")
    if rollout.epoch == epoch or rollout.state is State.ARCHIVED:
        return written(rollout, rollout, policy, now, "new_epoch", "unchanged")
    why = f"epoch_changed: the subject changed from {rollout.epoch or 'nothing'} to {epoch}; evidence starts again"
    new = replace(rollout, epoch=epoch, attempt=attempt, baked_seconds=0.0, errors=0, assessed_at=None)
    new = replace(new, rollbacks=0, cool_until=0.0, asked_at=0.0, approved_at=0.0, approved_by="")
    weight = policy.stages[rollout.stage].weight
    if rollout.killed or rollout.state is State.ROLLED_BACK:
        pass
    elif weight == 0:
        new = replace(new, entered_at=now, reason=rollout.reason if rollout.state is State.HELD else why)
    elif policy.stages[rollout.stage].name != "full" or policy.on_drift == "baseline":
        new = roll_back(new, policy, now, why, ramp=True)
    else:
        new = replace(new, entered_at=now, reason=why)
    return written(rollout, new, policy, now, "new_epoch", "epoch_changed")


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


def _kill(rollout: Rollout, policy: Policy, decision: Decision, now: float, why: str) -> Rollout:
    """Switch off; a kill that tolerates no delay (manual, live errors) also ends a ramp that is under way."""
    if not rollout.killed:
        return replace(off(rollout, policy, now, ramp=decision.ramp), killed=True, reason=why)
    if now < rollout.ramp_end and decision.reason in ("manual_kill", "live_errors"):
        return replace(rollout, ramp_weight=0, ramp_start=0.0, ramp_end=0.0, reason=why)
    return rollout
