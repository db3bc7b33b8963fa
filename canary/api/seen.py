"""What of a snapshot a key may see: its own routes, and the drill's flag, without which its client could answer no kill drill."""

from __future__ import annotations

from dataclasses import replace

from canary.domain.access import Caller
from canary.domain.flag import Snapshot
from canary.domain.kills import DRILL


def limited(caller: Caller) -> bool:
    """Whether the caller's key is for named routes only."""
    return caller.key is not None and bool(caller.key.routes)


def seen_by(caller: Caller, snapshot: Snapshot) -> Snapshot:
    """The snapshot as the caller may have it; its version is the whole one's."""
    if not limited(caller):
        return snapshot
    return replace(snapshot, flags={r: flag for r, flag in snapshot.flags.items() if r == DRILL or caller.sees(r)})
