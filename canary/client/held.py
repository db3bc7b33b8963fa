"""What a client knows at one moment, and what it tells whoever listens; values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from canary.domain.flag import Snapshot


@dataclass(frozen=True, slots=True)
class Held:
    """A snapshot, and how far it can be trusted.

    Args:
        etag: the server's name for the newest answer, "" if it gave none.
        fresh_at: monotonic moment at which the store last vouched for it.
    """

    snapshot: Snapshot
    etag: str
    fresh_at: float


class EventKind(StrEnum):
    """What happened to a client's flags."""

    READY = "ready"  # there is a snapshot, or a stale one is fresh again
    CHANGED = "changed"
    STALE = "stale"  # older than `max_stale`


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Args:
        routes: those whose flag is another one now; of `changed` only.
    """

    kind: EventKind
    routes: tuple[str, ...] = ()


def changed_routes(before: Snapshot | None, after: Snapshot) -> tuple[str, ...]:
    """Routes whose flag differs, in order."""
    known = {} if before is None else before.flags
    return tuple(sorted(r for r in {*known, *after.flags} if known.get(r) != after.flags.get(r)))
