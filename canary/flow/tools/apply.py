"""Make a policy the one that decides about its route."""

from __future__ import annotations

from dataclasses import replace

from canary.domain.flag import Flag
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout, State
from canary.flow.ports import Store
from canary.flow.tools.policy_files import dump


def apply_policy(store: Store, policy: Policy, text: str, now: float, actor: str = "cli") -> Rollout:
    """Pin the policy to its route; all of it is applied or nothing.

    A new route starts in shadow at weight 0. The same policy again changes nothing. A changed policy goes back to shadow with a
    new attempt, since margins and thresholds are frozen when an attempt starts; a kill stays.

    Args:
        text: the policy's YAML, stored as it is; of a structured route, the canonical form is, which holds what files it names.

    Returns:
        The route's rollout.
    """
    if policy.structured is not None:
        text = dump(policy)
    with store.transaction() as tx:
        tx.policies.put(policy.route, policy.content_hash, text, now)
        before = tx.rollouts.get(policy.route, lock=True)
        if before is not None and before.policy_hash == policy.content_hash:
            tx.commit()
            return before
        if before is None:
            after = Rollout(
                policy.route, policy.content_hash, State.SHADOW, 0, epoch="", attempt=1, entered_at=now, reason="applied"
            )
            flag = Flag.initial(policy.route)
        else:
            after = replace(
                before,
                policy_hash=policy.content_hash,
                state=State.SHADOW,
                stage=0,
                attempt=before.attempt + 1,
                entered_at=now,
                baked_seconds=0.0,
                assessed_at=None,
                errors=0,
                ramp_weight=0,
                ramp_start=0.0,
                ramp_end=0.0,
                reason=before.reason if before.killed else "policy_changed",
                version=before.version + 1,
            )
            flag = replace(tx.flags.get(policy.route) or Flag.initial(policy.route), weight=0, stage="shadow")
        tx.rollouts.put(after)
        tx.flags.put(flag)
        tx.audit.append(policy.route, "policy", actor, {"content_hash": policy.content_hash, "reason": after.reason}, now)
        tx.commit()
    return after
