"""Notices to webhooks: written in the transaction of what they tell of, sent later, at least once, from the outbox.

Nothing here waits for a receiver while a transaction is open, so a slow or failing one delays no transition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from canary.domain import chain
from canary.domain.notices import DEAD_AFTER_SECONDS, Notice, NoticeState, delay, facts, jitter
from canary.domain.policy import Policy
from canary.domain.stage_policy import told
from canary.flow.ports import Store, Transaction

LEASE_SECONDS = 60.0
BATCH = 20
MOST_ERROR = 200

# Audit events that are told, and as what. An approval that waits is told from the decision that asks for it.
EVENTS = {
    "advance": "stage",
    "roll_back": "stage",
    "hold": "stage",
    "new_epoch": "stage",
    "retry": "stage",
    "resume": "stage",
    "pause": "stage",
    "reject": "stage",
    "approve": "approval",
    "abort": "stage",
    "kill": "kill",
    "unkill": "kill",
    "drill": "drill",
    "decision": "verdict",
}

Send = Callable[[str, bytes], str]  # webhook's name and body -> "" where it was taken, else why not


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one round did."""

    sent: int
    failed: int
    dead: int


def tell(tx: Transaction, policy: Policy, kind: str, body: Mapping[str, object], now: float) -> list[Notice]:
    """Put an audit event into the outbox for every webhook that the policy names for it; the caller commits both or none.

    Args:
        kind, body: of the audit event; kinds that nobody is told of are passed over.
        now: seconds since the epoch, the event's.
    """
    decision = body.get("decision")
    if kind == "decision" and isinstance(decision, Mapping):
        body = {**body, "reason": decision["reason"], "decided": decision["kind"]}
    waits = kind == "decision" and body.get("reason") == "awaiting_approval"
    event = "approval" if waits else EVENTS.get(kind)
    return [] if event is None else tell_event(tx, policy, event, {"kind": kind, **body}, now)


def tell_event(
    tx: Transaction, policy: Policy, event: str, body: Mapping[str, object], now: float, *, key: str = ""
) -> list[Notice]:
    """As `tell`, of an event that has no audit event of its own, such as `budget` and `coverage`.

    Args:
        key: what is told once for ever, of this route and event, whatever else the body says; without one the body and the time
            are the key.

    Raises:
        ValueError: there is no such event.
    """
    said = {
        "event": event,
        "route": policy.route,
        "at": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "policy": policy.content_hash,
        **facts(body),
    }
    made = [_notice(target, event, policy.route, said, now, key) for target in told(policy.notify, event)]
    tx.notices.add(made)
    return made


def deliver(
    store: Store,
    send: Send,
    clock: Callable[[], float],
    *,
    dead_after: float = DEAD_AFTER_SECONDS,
    stopping: Callable[[], bool] = lambda: False,
) -> Delivered:
    """Send what is due once. A process that ends in between sends it again: receivers drop repeats by id.

    Args:
        send: takes a webhook's name and a body; returns "" where the receiver took it, else why not. It never raises.
        dead_after: seconds after which a notice is given up and listed.
        stopping: asked before each; what is left then is sent when its lease is over.
    """
    with store.transaction() as tx:
        due = tx.notices.claim(clock(), BATCH, LEASE_SECONDS)
        tx.commit()
    counted = dict.fromkeys(NoticeState, 0)
    for notice in due:
        if stopping():
            break
        after = _after(notice, send(notice.target, notice.body.encode()), clock(), dead_after)
        with store.transaction() as tx:
            tx.notices.put(after)
            tx.commit()
        counted[after.state] += 1
    return Delivered(counted[NoticeState.SENT], counted[NoticeState.PENDING], counted[NoticeState.DEAD])


def _after(notice: Notice, error: str, now: float, dead_after: float) -> Notice:
    tries = notice.tries + 1
    if not error:
        return replace(notice, tries=tries, state=NoticeState.SENT, error="", due_at=now)
    dead = now - notice.created_at > dead_after
    due = now if dead else now + delay(tries, jitter(notice.notice_id, tries))
    state = NoticeState.DEAD if dead else NoticeState.PENDING
    return replace(notice, tries=tries, state=state, error=error[:MOST_ERROR], due_at=due)


def _notice(target: str, event: str, route: str, said: Mapping[str, object], now: float, key: str) -> Notice:
    """The id is a digest of what is told and to whom, so that the same event is never two notices."""
    identity = chain.digest([target, route, event, key] if key else [target, dict(said)])[:32]
    body = json.dumps({"id": identity, **said}, sort_keys=True, separators=(",", ":"))
    return Notice(identity, target, event, route, body, now, now)
