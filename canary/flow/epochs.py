"""What an engine that announces itself may make of the epochs that its route has known.

An attempt's evidence is never judged under two policies, and two engines never take a route from each other again and again.
"""

from __future__ import annotations

from typing import Any

from canary.domain.errors import ConflictError
from canary.domain.rollout import Rollout
from canary.flow.ports import EngineInfo, Transaction


def next_attempt(tx: Transaction, route: str, epoch: str) -> int:
    """The attempt that a route opens when it enters an epoch: the first without evidence after all that have some."""
    return 1 + max(tx.evidence.attempts(route, epoch), default=0)


def require_pinned(rollout: Rollout, policy_hash: str | None) -> None:
    """Refuse an engine that was opened for a policy which the rollout no longer pins; None asks nothing.

    Raises:
        ConflictError: another policy is pinned.
    """
    if policy_hash not in (None, rollout.policy_hash):
        raise ConflictError(
            f"the engine was opened for policy {policy_hash[:12] if policy_hash else ''}, but the rollout now pins "
            f"{rollout.policy_hash[:12]}",
            where=f"rollouts/{rollout.route}",
            remedy="Open the engine of the pinned policy.",
        )


def require_not_left(tx: Transaction, rollout: Rollout, info: EngineInfo) -> None:
    """Refuse to return to an epoch that the pinned policy has left: the first change wins, and the older engine rests.

    Raises:
        ConflictError: both epochs have evidence under the pinned policy; says in what the engines differ.
    """
    here, there = _under_policy(tx, rollout, info.fingerprint), _under_policy(tx, rollout, rollout.epoch)
    if here is None or there is None:
        return
    mine, theirs = info.described, there["engine"]["described"]
    parts = [
        f"{name} (here {mine.get(name, 'none')}, there {theirs.get(name, 'none')})"
        for name in sorted({*mine, *theirs})
        if mine.get(name) != theirs.get(name)
    ]
    raise ConflictError(
        f"engine {info.fingerprint[:12]} has already been replaced by {rollout.epoch[:12]} under the same policy; they differ in "
        f"{', '.join(parts) or 'nothing that either describes'}",
        where=f"rollouts/{rollout.route}",
        remedy="Give all workers of the route the same versions and files. To return to this engine, stop those that run the "
        "other one and apply the policy with a change, such as a label.",
    )


def _under_policy(tx: Transaction, rollout: Rollout, epoch: str) -> dict[str, Any] | None:
    """The newest evidence record of the epoch that was begun under the pinned policy."""
    for attempt in reversed(tx.evidence.attempts(rollout.route, epoch)):
        record = tx.evidence.get(rollout.route, epoch, attempt)
        if record is not None and record.get("policy") == rollout.policy_hash:
            return record
    return None
