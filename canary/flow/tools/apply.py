"""Make a policy the one that decides about its route; a looser one only once somebody other than its author agrees.

All of it is applied or nothing, and a kill stays whatever the policy says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from canary.domain.errors import ApprovalNeededError, ConflictError, NotFoundError
from canary.domain.flag import Flag
from canary.domain.moves import facts_of
from canary.domain.policy import Policy
from canary.domain.policy_diff import Difference, Effect, compare, effect_at
from canary.domain.rollout import Rollout, State
from canary.flow.attempt import pinned_policy
from canary.flow.ports import Proposal, Store, Transaction
from canary.flow.tools.audits import grounds
from canary.flow.tools.people import refuse_own
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.walk.publish import carrying

GOING_ON = (State.SHADOW, State.CANARY, State.FULL, State.HELD)


def apply_policy(store: Store, policy: Policy, text: str, now: float, actor: str = "cli") -> Rollout:
    """Pin the policy to its route.

    A new route starts in shadow at weight 0. The same policy again changes nothing. A stricter or neutral one takes effect where
    the rollout stands: its bake starts again, and its evidence too where the change touches what that is judged by. A looser one
    is kept as the route's proposal until `approve_policy`. See `domain.policy_diff`.

    Args:
        text: the policy's YAML, stored as it is; of a structured route, the canonical form is, which holds what files it names.
        actor: who applies it; nobody approves their own.

    Returns:
        The route's rollout.

    Raises:
        ApprovalNeededError: it is looser than the pinned one; names what is looser. It is proposed then.
    """
    text = dump(policy) if policy.structured is not None else text
    with store.transaction() as tx:
        before = tx.rollouts.get(policy.route, lock=True)
        found = None if before is None else compare(_pinned(tx, before, policy), policy)
        if found is not None and found.looser:
            tx.proposals.put(Proposal(policy.route, policy.content_hash, text, actor, now))
            loose = ", ".join(c.path for c in found.changes if c.direction.value == "looser")
            body = {"content_hash": policy.content_hash, "reason": f"proposed: looser in {loose}", "changes": plain(found)}
            tx.audit.append(policy.route, "proposal", actor, body, now)
            tx.commit()
            raise ApprovalNeededError(
                f"the policy is looser than the one that decides now, in {loose}",
                where=f"policies/{policy.route}",
                remedy=f"Somebody else approves it: canary policy approve {policy.route} {policy.content_hash[:12]}.",
            )
        after = _pin(tx, before, policy, text, found, now, actor, {})
        tx.commit()
    return after


def approve_policy(store: Store, route: str, content_hash: str, actor: str, now: float) -> Rollout:
    """Agree to the route's proposed policy, which decides from now on.

    Args:
        content_hash: of the proposal, or its first 8 or more digits, so that nobody agrees to what they have not seen.
        actor: who agrees.

    Raises:
        NotFoundError: the route has no proposal.
        ConflictError: the proposal is another one.
        SelfApprovalError: the proposal is the actor's own.
    """
    where = f"policies/{route}"
    with store.transaction() as tx:
        before = tx.rollouts.get(route, lock=True)
        proposal = tx.proposals.get(route)
        if proposal is None or before is None:
            raise NotFoundError("no policy waits for approval", where=where, remedy="Apply the policy again.")
        if len(content_hash) < 8 or not proposal.content_hash.startswith(content_hash):
            raise ConflictError(
                f"the proposed policy is {proposal.content_hash[:12]}", where=where, remedy="Look at it, then approve that one."
            )
        remedy = "Somebody else must agree: --actor is who approves."
        refuse_own(tx, proposal.author, actor, what="proposed this policy", where=where, remedy=remedy)
        policy = load_text(proposal.text, f"proposal for {route}")
        found = compare(_pinned(tx, before, policy), policy)
        after = _pin(tx, before, policy, proposal.text, found, now, proposal.author, {"approved_by": actor})
        tx.commit()
    return after


def author_of(tx: Transaction, rollout: Rollout) -> str | None:
    """Who applied the policy that the rollout pins; None where the audit log does not say."""
    for event in tx.audit.list(rollout.route, kind="policy"):
        body: Any = event["body"]
        if body.get("content_hash") == rollout.policy_hash:
            return str(event["actor"])
    return None


def plain(found: Difference) -> list[dict[str, object]]:
    """The changes as JSON values."""
    return [{**asdict(c), "direction": c.direction.value} for c in found.changes]


def _pinned(tx: Transaction, rollout: Rollout, policy: Policy) -> Policy:
    """The policy that decides now; one that is gone is as strict as can be said: it counts as the new one."""
    try:
        return pinned_policy(tx, rollout)
    except NotFoundError:
        return policy


def _pin(
    tx: Transaction,
    before: Rollout | None,
    policy: Policy,
    text: str,
    found: Difference | None,
    now: float,
    actor: str,
    said: Mapping[str, object],
) -> Rollout:
    """Write policy, rollout, flag and audit event."""
    tx.policies.put(policy.route, policy.content_hash, text, now)
    if before is not None and before.policy_hash == policy.content_hash:
        return before
    tx.proposals.drop(policy.route)
    if before is None or found is None:
        new = Rollout(policy.route, policy.content_hash, State.SHADOW, 0, epoch="", attempt=1, entered_at=now, reason="applied")
        flag, effect = Flag.initial(policy.route), Effect.RESTART
    else:
        new, effect = _changed(tx, before, policy, found, now)
        flag = tx.flags.get(policy.route) or Flag.initial(policy.route)
    weight = 0 if effect is Effect.RESTART else min(flag.weight, policy.stages[new.stage].weight)
    shown = carrying(replace(flag, weight=weight, stage=policy.stages[new.stage].name), policy)
    tx.rollouts.put(new)
    tx.flags.put(shown)
    body = {"content_hash": policy.content_hash, "reason": new.reason, "effect": effect.value, "weight": weight, **said}
    body |= {"before": facts_of(before) if before else {}, "after": facts_of(new), "version": new.version}
    known = grounds(tx, before, now) if before else {}
    tx.audit.append(policy.route, "policy", actor, {**body, **known, "changes": plain(found) if found else []}, now)
    return new


def _changed(tx: Transaction, before: Rollout, policy: Policy, found: Difference, now: float) -> tuple[Rollout, Effect]:
    """The rollout under a changed policy; where it stays in its stage, a ramp goes on and a person's hold stands."""
    effect, stage = effect_at(found, _pinned(tx, before, policy), policy, before.stage)
    if before.killed or before.state not in GOING_ON or effect is Effect.UNCHANGED:
        effect, stage = Effect.RESTART, 0
    new = replace(
        before,
        policy_hash=policy.content_hash,
        stage=stage,
        entered_at=now,
        baked_seconds=0.0,
        assessed_at=None,
        errors=0,
        asked_at=0.0,
        approved_at=0.0,
        approved_by="",
        version=before.version + 1,
    )
    if effect is Effect.RESTART:
        off = {"state": State.SHADOW, "ramp_weight": 0, "ramp_start": 0.0, "ramp_end": 0.0}
        reason = before.reason if before.killed else "policy_changed"
        return replace(new, **off, attempt=before.attempt + 1, reason=reason), effect  # type: ignore[arg-type]
    why = "the stage stays, the bake starts again"
    if effect is Effect.GATHER:
        new = replace(new, attempt=before.attempt + 1)
        why = "the stage stays, evidence and bake start again"
    elif record := tx.evidence.get(before.route, before.epoch, before.attempt):
        tx.evidence.put(before.route, before.epoch, before.attempt, {**record, "policy": policy.content_hash})
    last = len(policy.stages) - 1
    state = State.SHADOW if stage == 0 else State.FULL if stage == last else State.CANARY
    held = before.state is State.HELD
    return replace(new, state=State.HELD if held else state, reason=before.reason if held else f"policy_changed: {why}"), effect
