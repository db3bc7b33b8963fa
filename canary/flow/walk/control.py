"""Steps 6 and 7: decide on the evidence, step the rollout, and flip the flag, all in one transaction.

The deciding is `domain.decide`; nothing here has an opinion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from canary.domain.decide import Decision, decide
from canary.domain.errors import ConflictError, UsageError
from canary.domain.evidence import Evidence
from canary.domain.rollout import Rollout
from canary.domain.step import Step, step
from canary.flow.alerts import assessed
from canary.flow.attempt import locked_rollout, pinned_policy, rollout_of
from canary.flow.kills import manual_kill
from canary.flow.notify import tell
from canary.flow.ports import Observer, Store, Transaction
from canary.flow.tools.audits import grounds
from canary.flow.walk.assess import assess
from canary.flow.walk.publish import publish

REMEMBER_SECONDS = 5.0  # an unchanged decision is written again only this often
LOOKS = 3  # at a route that moves while it is assessed

Fence = Callable[[Transaction], None]


def unfenced(tx: Transaction) -> None:
    """The fence of a process that needs no leader."""


def tick(
    store: Store, route: str, now: float, observer: Observer, *, fence: Fence = unfenced
) -> tuple[Rollout, Decision, Evidence | None]:
    """Assess one route, decide, and let the rollout and its flag follow.

    A decision is written only over the very row that was assessed: whoever was overtaken meanwhile, by a person or by another
    leader, looks again, so that each transition leaves one row and nothing undoes an order that it has not seen.

    Args:
        fence: called in the transaction that writes; raises ConflictError where this process leads no longer.

    Returns:
        The rollout afterwards, the decision, and the evidence that it was based on; None where it cannot be assessed, which
        counts as no data: ramps, limits and kills go on all the same.

    Raises:
        ConflictError: the route moved again and again while it was assessed, or the fence refused.
    """
    for look in range(LOOKS):
        seen = _version(store, route)
        evidence = _assessed(store, route, now, observer)
        with store.transaction() as tx:
            before = locked_rollout(tx, route)
            fence(tx)
            if before.version != seen:
                observer.note("overtaken", route=route, seen=seen, found=before.version)
                continue
            # Of a process that slept, the clock it brought is as old as its look.
            at = now if look == 0 else max(now, before.assessed_at or now)
            stepped, decision, evidence = _decided(tx, before, evidence, at)
            tx.commit()
        _note(observer, before, stepped.rollout, decision)
        return stepped.rollout, decision, evidence
    raise ConflictError(
        f"the route moved {LOOKS} times while it was assessed", where=f"rollouts/{route}", remedy="The next round looks again."
    )


def _version(store: Store, route: str) -> int:
    with store.transaction() as tx:
        return rollout_of(tx, route).version


def _decided(tx: Transaction, before: Rollout, evidence: Evidence | None, now: float) -> tuple[Step, Decision, Evidence | None]:
    """Decide and write, under the row's lock."""
    if evidence is not None and (before.epoch, before.attempt) != (evidence.epoch, evidence.attempt):
        evidence = None
    policy = pinned_policy(tx, before)
    decision = decide(before, policy, evidence, now, manual_kill=manual_kill(tx, before.route))
    stepped = step(before, policy, decision, now)
    _remember(tx, before, stepped.rollout, decision, evidence, now)
    publish(tx, before, stepped, actor="policy", now=now)
    return stepped, decision, evidence


def _note(observer: Observer, before: Rollout, after: Rollout, decision: Decision) -> None:
    if (after.state, after.stage, after.killed) != (before.state, before.stage, before.killed):
        said = {"reason": decision.reason, "sentence": decision.sentence}
        observer.note("moved", route=after.route, state=after.state.value, **said)


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
    policy = pinned_policy(tx, before)
    told = assessed(tx, before, policy, record, evidence, now)
    if moved or told or previous["folded"] != body["folded"] or now - previous["decision"]["at"] > REMEMBER_SECONDS:
        tx.evidence.put(*key, {**record, **told, "last": body})
    if moved:
        inputs = grounds(tx, before, now)["inputs"]
        tx.audit.append(before.route, "decision", "policy", {**body, "inputs": inputs}, now)
        tell(tx, policy, "decision", body, now)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[k] == other[k] for k in ("kind", "reason"))
