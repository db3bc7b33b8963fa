"""Steps 6 and 7: decide on the evidence, step the rollout, and flip the flag, all in one transaction.

The deciding is `domain.decide`; nothing here has an opinion.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from canary.domain.decide import Decision, decide
from canary.domain.errors import ConflictError, UsageError
from canary.domain.evidence import Evidence
from canary.domain.rollout import Rollout
from canary.domain.step import step
from canary.flow.attempt import locked_rollout, pinned_policy
from canary.flow.ports import Observer, Store, Transaction
from canary.flow.walk.assess import assess
from canary.flow.walk.publish import publish

REMEMBER_SECONDS = 5.0  # an unchanged decision is written again only this often


def tick(store: Store, route: str, now: float, observer: Observer) -> tuple[Rollout, Decision, Evidence | None]:
    """Assess one route, decide, and let the rollout and its flag follow.

    Returns:
        The rollout afterwards, the decision, and the evidence that it was based on; None where it cannot be assessed, which
        counts as no data: ramps, limits and kills go on all the same.
    """
    evidence = _assessed(store, route, now, observer)
    with store.transaction() as tx:
        before = locked_rollout(tx, route)
        if evidence is not None and (before.epoch, before.attempt) != (evidence.epoch, evidence.attempt):
            evidence = None
        policy = pinned_policy(tx, before)
        decision = decide(before, policy, evidence, now)
        stepped = step(before, policy, decision, now)
        _remember(tx, before, stepped.rollout, decision, evidence, now)
        publish(tx, before, stepped, actor="policy", now=now)
        tx.commit()
    if (stepped.rollout.state, stepped.rollout.stage, stepped.rollout.killed) != (before.state, before.stage, before.killed):
        observer.note("moved", route=route, state=stepped.rollout.state.value, reason=decision.reason, sentence=decision.sentence)
    return stepped.rollout, decision, evidence


def _assessed(store: Store, route: str, now: float, observer: Observer) -> Evidence | None:
    try:
        return assess(store, route, now)
    except (ConflictError, UsageError) as error:
        observer.note("assess_failed", route=route, code=error.code, detail=str(error))
        return None


def _remember(
    tx: Transaction, before: Rollout, after: Rollout, decision: Decision, evidence: Evidence | None, now: float
) -> None:
    """Keep the newest decision with its gates beside the evidence, and a new kind of decision in the audit log."""
    body: dict[str, Any] = {
        "decision": {**asdict(decision), "at": now},
        "state": after.state.value,
        "stage": after.stage,
        "gates": [asdict(g) for g in evidence.gates] if evidence else [],
        "folded": evidence.folded if evidence else 0,
        "num_pairs": evidence.num_pairs if evidence else 0,
        "num_failed": evidence.num_failed if evidence else 0,
        "num_control": evidence.num_control if evidence else 0,
    }
    key = (before.route, before.epoch, before.attempt)
    record = tx.evidence.get(*key)
    if record is None:
        return
    previous: Any = record["last"]
    moved = not previous or previous["state"] != body["state"] or not _same(previous["decision"], body["decision"])
    if moved or previous["folded"] != body["folded"] or now - previous["decision"]["at"] > REMEMBER_SECONDS:
        tx.evidence.put(*key, {**record, "last": body})
    if moved:
        tx.audit.append(before.route, "decision", "policy", body, now)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[k] == other[k] for k in ("kind", "reason"))
