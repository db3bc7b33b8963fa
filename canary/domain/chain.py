"""The audit log's hash chain: every event of a route carries a digest over itself and the one before it.

So a changed, missing or reordered event is found by anybody who reads the log; nothing here reads or writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

START = ""  # what the first event of a chain follows


@dataclass(frozen=True, slots=True)
class Break:
    """Where a chain stops holding.

    Args:
        event_id: of the first event that does not fit.
        why: for people.
    """

    event_id: int
    why: str


def digest(value: Any) -> str:
    """SHA-256, in hex, of a value as canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("utf-8", "surrogatepass")).hexdigest()


def link(previous: str, route: str, kind: str, actor: str, body: Mapping[str, object], at: float) -> str:
    """The digest of one event.

    Args:
        previous: the digest of the route's event before it, `START` for the first.
        at: seconds since the epoch; its microseconds count.
    """
    return digest([previous, route, kind, actor, json.loads(json.dumps(body)), round(at * 1e6)])


def verify(events: Iterable[Mapping[str, Any]]) -> Break | None:
    """The first break in one route's events, oldest first; None where the chain holds.

    Events from before chains were kept carry no digest; after the first that does, every one must.
    """
    previous = START
    for event in events:
        if event["digest"] is None:
            if previous != START:
                return Break(event["id"], "it carries no digest although the events before it do")
            continue
        if event["previous"] != previous:
            return Break(event["id"], "it does not follow the event before it: one is missing, added or out of order")
        if link(previous, event["route"], event["kind"], event["actor"], event["body"], event["at"]) != event["digest"]:
            return Break(event["id"], "its content was changed after it was written")
        previous = event["digest"]
    return None
