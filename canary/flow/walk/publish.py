"""Step 7: write a step's rollout, flag and audit events side by side; the caller commits all of it or none.

It never turns a kill switch off unless it is told to revive the route, whatever the step says.
"""

from __future__ import annotations

from dataclasses import replace

from canary.domain.flag import Flag, Scalar
from canary.domain.pins import in_force
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.domain.step import Step
from canary.flow.attempt import pinned_policy
from canary.flow.notify import tell
from canary.flow.ports import Transaction
from canary.flow.tools.audits import grounds


def flag_of(step: Step, stage: str, previous: Flag | None, *, revive: bool = False) -> Flag:
    """The flag row that a step asks for.

    Args:
        stage: the name of the rollout's stage, for people.
        previous: the route's flag so far; its salt stays, so that raising the weight moves nobody back, and so does its kill.
        revive: a person has undone the kill.
    """
    flag = replace(previous or Flag.initial(step.rollout.route), stage=stage)
    if flag.killed and not revive:
        return replace(flag, weight=min(flag.weight, step.flag_weight))
    if flag.killed == step.killed:
        return replace(flag, weight=step.flag_weight, kill_reason=step.kill_reason)
    return flag.switched(step.killed, reason=step.kill_reason, weight=step.flag_weight)


def carrying(flag: Flag, policy: Policy) -> Flag:
    """The flag with what gateways need of the policy: what the candidate is, whom it is for, what a lost control plane means."""
    subject = policy.subject
    config: dict[str, Scalar] = {
        "engine": subject.engine,
        "target": subject.target,
        "dtype": subject.dtype,
        "drafter": subject.drafter.name,
        "drafter_model": subject.drafter.model or "",
        "num_speculative_tokens": subject.drafter.num_speculative_tokens,
    }
    return replace(
        flag,
        match=policy.match,
        on_lost=policy.on_lost,
        max_stale=policy.max_stale_seconds,
        policy_version=policy.content_hash,
        config=config,
    )


def publish(tx: Transaction, before: Rollout, step: Step, *, actor: str, now: float, revive: bool = False) -> Flag:
    """Write the step: the rollout, the flag if it changed (so that an unchanged snapshot keeps its version), and what happened.

    Args:
        before: the rollout that was read under its row lock.
        actor: `policy`, `worker` or a person.
        now: seconds since the epoch.
        revive: a person has undone the kill.

    Returns:
        The flag as it stands.
    """
    if step.rollout != before:
        tx.rollouts.put(step.rollout)
    previous = tx.flags.get(before.route)
    policy = pinned_policy(tx, step.rollout)
    flag = carrying(flag_of(step, policy.stages[step.rollout.stage].name, previous, revive=revive), policy)
    flag = replace(flag, pins=in_force(tx.pins.list(before.route), step.rollout, now))
    if flag != previous:
        tx.flags.put(flag)
    for kind, body in step.audit:
        tx.audit.append(before.route, kind, actor, {**body, **grounds(tx, before, now), "sentence": step.rollout.reason}, now)
        tell(tx, policy, kind, body, now)
    return flag
