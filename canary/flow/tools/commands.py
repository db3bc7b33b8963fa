"""What a person orders about one route, with a reason: kill it, undo a kill, let a held rollout go on, or try again.

A kill needs no policy, no evidence and no healthy rollout, only the store; it is never undone by anything but `unkill`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from canary.domain.errors import KilledError, RequestError
from canary.domain.flag import Flag
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.domain.step import Step
from canary.domain.step import resume as stepped_resume
from canary.domain.step import retry as stepped_retry
from canary.domain.step import unkill as stepped_unkill
from canary.flow.attempt import locked_rollout, pinned_policy
from canary.flow.ports import Store, Transaction
from canary.flow.walk.publish import publish

MAX_REASON = 500


def kill(store: Store, route: str, reason: str, actor: str, now: float) -> Flag:
    """Turn the route's kill switch on: every unit gets the baseline from the next snapshot on, whatever the rollout's state.

    Rollout, flag and audit event change in one transaction. A second kill changes nothing and keeps the first one's reason.

    Args:
        reason: why, for people.
        actor: who, for the audit log.
        now: seconds since the epoch.

    Raises:
        NotFoundError: there is no such route; names those there are.
        RequestError: the reason or the actor is empty or too long.
    """
    reason, actor = _said("reason", reason), _said("actor", actor)
    with store.transaction() as tx:
        rollout = locked_rollout(tx, route)
        before = tx.flags.get(route) or Flag.initial(route)
        if before.killed and rollout.killed:
            return before
        flag = before if before.killed else replace(before, weight=0, killed=True, kill_reason=f"manual: {reason}")
        # A ramp that an evidence kill began ends here: a person's kill is immediate.
        off = replace(rollout, killed=True, ramp_weight=0, ramp_start=0.0, ramp_end=0.0, reason=flag.kill_reason)
        tx.rollouts.put(replace(off, version=rollout.version + 1))
        tx.flags.put(flag)
        body = {
            "sentence": flag.kill_reason,
            "reason": reason,
            "state": rollout.state.value,
            "stage": rollout.stage,
            "weight": before.weight,
        }
        tx.audit.append(route, "kill", actor, body, now)
        tx.commit()
    return flag


def unkill(store: Store, route: str, reason: str, actor: str, now: float) -> Rollout:
    """Undo a kill: the route starts again in shadow, at weight 0, with a new attempt.

    Raises:
        NotFoundError: there is no such route.
        ConflictError: the route is not killed.
        RequestError: the reason or the actor is empty or too long.
    """
    reason, actor = _said("reason", reason), _said("actor", actor)
    with store.transaction() as tx:
        rollout = locked_rollout(tx, route)
        flag = tx.flags.get(route)
        killed = rollout.killed or (flag is not None and flag.killed)
        stepped = stepped_unkill(replace(rollout, killed=killed), pinned_policy(tx, rollout), now, reason=reason)
        publish(tx, rollout, stepped, actor=actor, now=now, revive=True)
        tx.commit()
    return stepped.rollout


def resume(store: Store, route: str, reason: str, actor: str, now: float) -> Rollout:
    """Let a held rollout go on in the stage where it stopped, with its evidence and its weight.

    Raises:
        NotFoundError: there is no such route.
        KilledError: the route is killed.
        ConflictError: the rollout is not held.
        RequestError: the reason or the actor is empty or too long.
    """
    return _ordered(store, route, stepped_resume, reason, actor, now)


def retry(store: Store, route: str, reason: str, actor: str, now: float) -> Rollout:
    """Open the next attempt of a rolled back or held rollout: in shadow, at weight 0, with no evidence.

    Raises:
        NotFoundError: there is no such route.
        KilledError: the route is killed.
        ConflictError: there is nothing to retry, or the cool-down is not over.
        RequestError: the reason or the actor is empty or too long.
    """
    return _ordered(store, route, stepped_retry, reason, actor, now)


class _Order(Protocol):
    """A person's order as a pure step of the domain."""

    def __call__(self, rollout: Rollout, policy: Policy, now: float, *, reason: str) -> Step: ...


def _ordered(store: Store, route: str, order: _Order, reason: str, actor: str, now: float) -> Rollout:
    """Carry out an order on a route that is not killed, in one transaction."""
    reason, actor = _said("reason", reason), _said("actor", actor)
    with store.transaction() as tx:
        rollout = _unkilled_rollout(tx, route)
        stepped = order(rollout, pinned_policy(tx, rollout), now, reason=reason)
        publish(tx, rollout, stepped, actor=actor, now=now)
        tx.commit()
    return stepped.rollout


def _unkilled_rollout(tx: Transaction, route: str) -> Rollout:
    """The route's rollout under its row lock; whether its rollout or its flag is killed, a kill is undone first."""
    rollout, flag = locked_rollout(tx, route), tx.flags.get(route)
    if rollout.killed or (flag is not None and flag.killed):
        remedy = f"Lift the kill, which opens the next attempt: canary rollouts unkill {route} --reason WHY."
        raise KilledError("the route is killed", where=f"rollouts/{route}", remedy=remedy)
    return rollout


def _said(field: str, text: str) -> str:
    said = text.strip()
    if not said or len(said) > MAX_REASON:
        raise RequestError(
            f"`{field}` must be 1 to {MAX_REASON} characters", where=f"/{field}", remedy=f"Say the {field} in a sentence."
        )
    return said
