"""How a rollout's row changes: entering a stage, coming off the traffic, and what one transaction writes of it.

Pure building blocks of `step` and `orders`; none of them looks at evidence or knows who asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from canary.domain.policy import Policy
from canary.domain.rollout import Rollout, State

RAMP_ABOVE = 5_000  # basis points: the baseline fleet may be scaled down above half of the traffic
WATCHED = ("policy_hash", "state", "stage", "epoch", "attempt", "killed", "rollbacks", "asked_at", "approved_by")


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


def enter(rollout: Rollout, policy: Policy, stage: int, now: float) -> Rollout:
    """The row at the start of a stage: its clocks, its ramp and what a person said of it start again."""
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
        asked_at=0.0,
        approved_at=0.0,
        approved_by="",
    )


def roll_back(rollout: Rollout, policy: Policy, now: float, why: str, *, ramp: bool) -> Rollout:
    """The row off the traffic, with its cool-down begun; every further rollback of the epoch makes that longer."""
    rollbacks = rollout.rollbacks + 1
    until = now + policy.limits.cooldown_of(rollbacks)
    moved = replace(off(rollout, policy, now, ramp=ramp), state=State.ROLLED_BACK, rollbacks=rollbacks, cool_until=until)
    return replace(moved, entered_at=now, baked_seconds=0.0, reason=why)


def off(rollout: Rollout, policy: Policy, now: float, *, ramp: bool) -> Rollout:
    """Start a ramp from the present weight where it is asked for, above half of the traffic and takes time.

    Whatever was asked or agreed about the next stage is void.
    """
    rollout = replace(rollout, asked_at=0.0, approved_at=0.0, approved_by="")
    weight, seconds = weight_of(rollout, policy, now), policy.limits.kill_ramp_seconds
    if ramp and weight > RAMP_ABOVE and seconds > 0:
        return replace(rollout, ramp_weight=weight, ramp_start=now, ramp_end=now + seconds)
    return replace(rollout, ramp_weight=0, ramp_start=0.0, ramp_end=0.0)


def written(old: Rollout, new: Rollout, policy: Policy, now: float, kind: str, reason: str) -> Step:
    """What to write of a change: the version rises by one, and what is watched goes into the audit log if it moved."""
    if new != old:
        new = replace(new, version=old.version + 1)
    weight = weight_of(new, policy, now)
    before, after = facts_of(old), facts_of(new)
    body = {"reason": reason, "before": before, "after": after, "weight": weight, "version": new.version}
    return Step(
        rollout=new,
        flag_weight=weight,
        killed=new.killed and weight == 0,
        kill_reason=new.reason if new.killed else "",
        audit=((kind, body),) if before != after else (),
    )


def facts_of(rollout: Rollout) -> dict[str, object]:
    """What the audit log says of a row, before and after each move; `replay` builds the row from it."""
    found = {name: getattr(rollout, name) for name in WATCHED}
    return {**found, "state": rollout.state.value}
