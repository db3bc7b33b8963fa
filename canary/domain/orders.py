"""What a person orders about one rollout, as a pure step: pause, resume, approve, reject, abort, retry, unkill.

An order never looks at evidence and never promotes: an approval only lets the next healthy decision move exactly one stage.
"""

from __future__ import annotations

from dataclasses import replace

from canary.domain.errors import ConflictError, KilledError, UsageError
from canary.domain.facts import asked_approval, cooled_at
from canary.domain.moves import Step, enter, roll_back, weight_of, written
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout, State

MOVING = (State.SHADOW, State.CANARY, State.FULL)


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


def retry(rollout: Rollout, policy: Policy, now: float, *, reason: str, at_once: bool = False) -> Step:
    """A person opens the next attempt of a rolled back or held rollout, in shadow.

    Args:
        at_once: the person ends the cool-down, too; the epoch's attempts stay counted and limited.

    Raises:
        UsageError: no reason given.
        KilledError: lift the kill first.
        ConflictError: neither rolled back nor held, the cool-down is not over, or the epoch's attempts are used up.
    """
    where = f"rollouts/{rollout.route}"
    if rollout.killed:
        raise KilledError("the route is killed", where=where, remedy="Lift the kill with a reason; that opens the next attempt.")
    if rollout.state not in (State.ROLLED_BACK, State.HELD):
        raise ConflictError(f"a rollout in state {rollout.state.value} has nothing to retry", where=where)
    limits, left = policy.limits, cooled_at(rollout, policy) - now
    if (at_once or rollout.state is State.ROLLED_BACK) and rollout.rollbacks >= limits.max_attempts:
        raise ConflictError(
            f"{rollout.rollbacks} of {limits.max_attempts} attempts of this epoch were rolled back",
            where=where,
            remedy="Apply another policy, or run another engine; the same one is not tried again.",
        )
    if at_once:
        return _again(replace(rollout, cool_until=min(rollout.cool_until, now)), policy, now, "retry", reason, code="retry_now")
    if rollout.state is State.ROLLED_BACK and left > 0:
        remedy = "Retry then, or let somebody who may approve end the cool-down: canary rollouts retry ROUTE --now --reason WHY."
        raise ConflictError(f"the cool-down ends in {left:.0f} s", where=where, remedy=remedy)
    return _again(rollout, policy, now, "retry", reason)


def resume(rollout: Rollout, policy: Policy, now: float, *, reason: str) -> Step:
    """A person lets a held rollout go on in the stage where it stopped; its clocks start again, its evidence stays.

    Raises:
        UsageError: no reason given.
        ConflictError: the rollout is not held.
    """
    if rollout.state is not State.HELD or rollout.killed:
        raise ConflictError(f"a rollout in state {rollout.state.value} is not held", where=f"rollouts/{rollout.route}")
    new = replace(enter(rollout, policy, rollout.stage, now), reason=f"resumed: {_need(reason, rollout)}")
    return written(rollout, new, policy, now, "resume", "resumed")


def pause(rollout: Rollout, policy: Policy, now: float, *, reason: str) -> Step:
    """A person holds the rollout where it is: it keeps its weight, and its thresholds stay armed.

    Raises:
        UsageError: no reason given.
        KilledError: the route is killed.
        ConflictError: it is not on its way.
    """
    _require_alive(rollout)
    if rollout.state not in MOVING:
        raise ConflictError(f"a rollout in state {rollout.state.value} cannot be paused", where=f"rollouts/{rollout.route}")
    new = replace(rollout, state=State.HELD, reason=f"paused: {_need(reason, rollout)}")
    return written(rollout, replace(new, asked_at=0.0, approved_at=0.0, approved_by=""), policy, now, "pause", "paused")


def approve(rollout: Rollout, policy: Policy, now: float, *, reason: str, actor: str) -> Step:
    """A person agrees to the next stage: the next decision that finds all gates passing moves there, and no further.

    Evidence is not overruled. A held rollout goes on in its stage, with its clocks started again.

    Args:
        actor: who agrees.

    Raises:
        UsageError: no reason given.
        KilledError: the route is killed.
        ConflictError: the next stage asks for no approval, or the rollout is not on its way there.
    """
    _require_asked(rollout, policy)
    new = enter(rollout, policy, rollout.stage, now) if rollout.state is State.HELD else rollout
    new = replace(new, approved_at=now, approved_by=actor, reason=f"approved: {_need(reason, rollout)}")
    return written(rollout, new, policy, now, "approve", "approved")


def reject(rollout: Rollout, policy: Policy, now: float, *, reason: str) -> Step:
    """A person refuses the next stage: the rollout is held where it is.

    Raises:
        UsageError: no reason given.
        KilledError: the route is killed.
        ConflictError: the next stage asks for no approval, or the rollout is not on its way there.
    """
    _require_asked(rollout, policy)
    new = replace(rollout, state=State.HELD, asked_at=0.0, approved_at=0.0, approved_by="")
    return written(rollout, replace(new, reason=f"rejected: {_need(reason, rollout)}"), policy, now, "reject", "rejected")


def abort(rollout: Rollout, policy: Policy, now: float, *, reason: str) -> Step:
    """A person ends the attempt: weight 0 at once, without a ramp, and whatever was agreed is void.

    With nothing in progress it changes nothing.

    Raises:
        UsageError: no reason given.
    """
    why = f"aborted: {_need(reason, rollout)}"
    new = rollout
    if not rollout.killed and rollout.state in (*MOVING, State.HELD):
        new = roll_back(rollout, policy, now, why, ramp=False)
    elif weight_of(rollout, policy, now) > 0:
        new = replace(rollout, ramp_weight=0, ramp_start=0.0, ramp_end=0.0, reason=rollout.reason if rollout.killed else why)
    return written(rollout, new, policy, now, "abort", "aborted")


def _require_alive(rollout: Rollout) -> None:
    if rollout.killed:
        raise KilledError("the route is killed", where=f"rollouts/{rollout.route}", remedy="Lift the kill with a reason first.")


def _require_asked(rollout: Rollout, policy: Policy) -> None:
    _require_alive(rollout)
    where = f"rollouts/{rollout.route}"
    if rollout.state not in (State.SHADOW, State.CANARY, State.HELD):
        raise ConflictError(f"a rollout in state {rollout.state.value} waits for no approval", where=where)
    if asked_approval(rollout, policy) is None:
        raise ConflictError("the next stage asks for no approval", where=where, remedy="Nothing to answer.")


def _again(rollout: Rollout, policy: Policy, now: float, kind: str, reason: str, code: str = "") -> Step:
    """Shadow once more, with the next attempt; `code` is what the audit log calls it where that is not its kind."""
    if rollout.state is State.ARCHIVED:
        raise ConflictError("the rollout is archived", where=f"rollouts/{rollout.route}", remedy="Apply a policy to start again.")
    state = State.SHADOW if rollout.epoch else State.PENDING
    new = replace(enter(rollout, policy, 0, now), state=state, attempt=rollout.attempt + 1, assessed_at=None, killed=False)
    return written(rollout, replace(new, reason=f"{code or kind}: {_need(reason, rollout)}"), policy, now, kind, code or kind)


def _need(reason: str, rollout: Rollout) -> str:
    if not reason.strip():
        raise UsageError("a reason is needed", where=f"rollouts/{rollout.route}", remedy="Say why, for the audit log.")
    return reason.strip()
