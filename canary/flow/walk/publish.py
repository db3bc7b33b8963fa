"""Step 7: write a step's rollout, flag and audit events side by side; the caller commits all of it or none.

It never turns a kill switch off unless it is told to revive the route, whatever the step says.
"""

from __future__ import annotations

from canary.domain.flag import Flag
from canary.domain.rollout import Rollout
from canary.domain.step import Step
from canary.flow.attempt import pinned_policy
from canary.flow.ports import Transaction


def flag_of(step: Step, stage: str, previous: Flag | None, *, revive: bool = False) -> Flag:
    """The flag row that a step asks for.

    Args:
        stage: the name of the rollout's stage, for people.
        previous: the route's flag so far; its salt stays, so that raising the weight moves nobody back, and so does its kill.
        revive: a person has undone the kill.
    """
    route = step.rollout.route
    salt = (previous or Flag.initial(route)).salt
    if previous is not None and previous.killed and not revive:
        return Flag(route, min(previous.weight, step.flag_weight), salt, True, previous.kill_reason, stage)
    return Flag(route, step.flag_weight, salt, step.killed, step.kill_reason, stage)


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
    stages = pinned_policy(tx, step.rollout).stages
    flag = flag_of(step, stages[step.rollout.stage].name, previous, revive=revive)
    if flag != previous:
        tx.flags.put(flag)
    for kind, body in step.audit:
        tx.audit.append(before.route, kind, actor, {**body, "sentence": step.rollout.reason}, now)
    return flag
