"""What a person orders about one route, with a reason: kill, unkill, pause, resume, approve, reject, abort, retry.

A kill needs no policy, no evidence and no healthy rollout, only the store; it is never undone by anything but `unkill`.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from canary.domain.errors import KilledError
from canary.domain.facts import asked_approval
from canary.domain.orders import abort as stepped_abort
from canary.domain.orders import approve as stepped_approve
from canary.domain.orders import pause as stepped_pause
from canary.domain.orders import reject as stepped_reject
from canary.domain.orders import resume as stepped_resume
from canary.domain.orders import retry as stepped_retry
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.domain.step import Step
from canary.flow.attempt import locked_rollout, pinned_policy
from canary.flow.kills import MAX_REASON, kill, said, unkill
from canary.flow.ports import Store, Transaction
from canary.flow.tools.apply import author_of
from canary.flow.tools.people import refuse_own
from canary.flow.walk.publish import publish

__all__ = ["MAX_REASON", "abort", "approve", "kill", "pause", "reject", "resume", "retry", "unkill"]


def pause(store: Store, route: str, reason: str, actor: str, now: float) -> Rollout:
    """Hold the rollout where it is: it keeps its weight, and its thresholds stay armed, until a person resumes.

    Raises:
        NotFoundError: there is no such route.
        KilledError: the route is killed.
        ConflictError: it is not on its way.
        RequestError: the reason or the actor is empty or too long.
    """
    return _ordered(store, route, stepped_pause, reason, actor, now)


def approve(store: Store, route: str, reason: str, actor: str, now: float) -> Rollout:
    """Agree to the next stage: the next decision that finds all gates passing moves there, exactly one stage.

    Raises:
        NotFoundError: there is no such route.
        KilledError: the route is killed.
        ConflictError: the next stage asks for no approval, or the rollout is not on its way there.
        SelfApprovalError: the actor applied the policy, which does not let its author approve.
        RequestError: the reason or the actor is empty or too long.
    """
    reason, actor = said("reason", reason), said("actor", actor)
    with store.transaction() as tx:
        rollout = _unkilled_rollout(tx, route)
        policy = pinned_policy(tx, rollout)
        stepped = stepped_approve(rollout, policy, now, reason=reason, actor=actor)
        asked = asked_approval(rollout, policy)
        if asked is not None and not asked.by_author:
            remedy = "Somebody else must agree to the next stage."
            author, where = author_of(tx, rollout), f"rollouts/{route}"
            refuse_own(tx, author, actor, what="applied this policy", where=where, remedy=remedy)
        publish(tx, rollout, stepped, actor=actor, now=now)
        tx.commit()
    return stepped.rollout


def reject(store: Store, route: str, reason: str, actor: str, now: float) -> Rollout:
    """Refuse the next stage: the rollout is held where it is.

    Raises:
        NotFoundError: there is no such route.
        KilledError: the route is killed.
        ConflictError: the next stage asks for no approval, or the rollout is not on its way there.
        RequestError: the reason or the actor is empty or too long.
    """
    return _ordered(store, route, stepped_reject, reason, actor, now)


def abort(store: Store, route: str, reason: str, actor: str, now: float) -> Rollout:
    """End the attempt: weight 0 at once, whatever was agreed; the cool-down begins. With nothing in progress nothing changes.

    Raises:
        NotFoundError: there is no such route.
        RequestError: the reason or the actor is empty or too long.
    """
    reason, actor = said("reason", reason), said("actor", actor)
    with store.transaction() as tx:
        rollout = locked_rollout(tx, route)
        stepped = stepped_abort(rollout, pinned_policy(tx, rollout), now, reason=reason)
        if stepped.rollout != rollout:
            publish(tx, rollout, stepped, actor=actor, now=now)
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


def retry(store: Store, route: str, reason: str, actor: str, now: float, *, at_once: bool = False) -> Rollout:
    """Open the next attempt of a rolled back or held rollout: in shadow, at weight 0, with no evidence.

    Args:
        at_once: end the cool-down, too; the caller has made sure that the actor may.

    Raises:
        NotFoundError: there is no such route.
        KilledError: the route is killed.
        ConflictError: there is nothing to retry, the cool-down is not over, or the epoch's attempts are used up.
        RequestError: the reason or the actor is empty or too long.
    """
    return _ordered(store, route, partial(stepped_retry, at_once=at_once), reason, actor, now)


class _Order(Protocol):
    """A person's order as a pure step of the domain."""

    def __call__(self, rollout: Rollout, policy: Policy, now: float, *, reason: str) -> Step: ...


def _ordered(store: Store, route: str, order: _Order, reason: str, actor: str, now: float) -> Rollout:
    """Carry out an order on a route that is not killed, in one transaction."""
    reason, actor = said("reason", reason), said("actor", actor)
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
