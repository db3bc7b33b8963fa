"""The audit log: what a decision or command rested on, whether the log is whole, and the rollout that it leads to.

Reads only; whoever acts appends to it in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from canary.domain import chain
from canary.domain.moves import WATCHED, facts_of
from canary.domain.rollout import Rollout
from canary.flow.ports import Transaction

BATCH = 500


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Whether one route's events are as they were written.

    Args:
        events: how many were read.
        head: digest of the newest; who keeps it elsewhere also notices events that are cut off at the end.
        break_: the first that does not fit, None where all do.
    """

    route: str
    events: int
    head: str
    break_: chain.Break | None

    @property
    def ok(self) -> bool:
        return self.break_ is None


def grounds(tx: Transaction, before: Rollout, now: float) -> dict[str, object]:
    """What an audit event says of what was known when it was written: the evidence, frozen, and a digest over all inputs.

    Args:
        before: the row that was decided on.
        now: seconds since the epoch, the decision's.
    """
    record: Any = tx.evidence.get(before.route, before.epoch, before.attempt)
    last: Any = (record or {}).get("last") or {}
    gates = last.get("gates", [])
    frozen = {
        "epoch": before.epoch,
        "attempt": before.attempt,
        "folded": last.get("folded", 0),
        "num_pairs": last.get("num_pairs", 0),
        "gates": gates,
        "digest": chain.digest(gates),
    }
    return {"evidence": frozen, "inputs": chain.digest([facts_of(before), before.version, frozen, now])}


def events_of(tx: Transaction, route: str) -> Iterator[dict[str, Any]]:
    """One route's events, oldest first."""
    after = 0
    while found := tx.audit.chain(route, after=after, limit=BATCH):
        newest: Any = found[-1]["id"]
        after = int(newest)
        yield from found


def verify_chain(tx: Transaction, route: str) -> ChainReport:
    """Read one route's whole log and check its chain; see `domain.chain.verify`."""
    events = list(events_of(tx, route))
    head = next((str(e["digest"]) for e in reversed(events) if e["digest"] is not None), chain.START)
    return ChainReport(route, len(events), head, chain.verify(events))


def replay(events: Iterable[Mapping[str, Any]]) -> dict[str, object] | None:
    """What the log says that a rollout is: `facts_of` its row, and its version at the newest move; None before the first event.

    Clocks, such as the bake, move without an event and are not in it.

    Args:
        events: one route's, oldest first.
    """
    facts: dict[str, object] | None = None
    for event in events:
        body: Mapping[str, Any] = event["body"]
        after = body.get("after")
        if after is not None:
            facts = {**{name: after.get(name, (facts or {}).get(name)) for name in WATCHED}, "version": body["version"]}
    return facts


def diverged(tx: Transaction, rollout: Rollout) -> list[str]:
    """Names of the facts in which a stored rollout is not what its log leads to; empty where it is."""
    replayed = replay(events_of(tx, rollout.route))
    if replayed is None:
        return list(WATCHED)
    return [name for name, value in facts_of(rollout).items() if replayed[name] != value]
