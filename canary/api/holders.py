"""Which client holds which snapshot, by what the clients themselves say; in memory, bounded, and asked by nobody but drills."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

CLIENT_HEADER = "Canary-Client"
HOLDS_HEADER = "Canary-Holds"
CLIENT = re.compile(r"[\x21-\x7e]{1,100}")
HOLDS = re.compile(r"(\d{1,18})\.(\d{1,16})")
MAX_CLIENTS = 10_000
CONNECTED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Holding:
    """What one client said last.

    Args:
        version, kill_epoch: of the snapshot that it holds.
        since: monotonic moment at which it first said so of this kill epoch.
        seen: monotonic moment at which it last said anything.
    """

    version: int
    kill_epoch: int
    since: float
    seen: float


class Holders:
    """The clients of this process; the longest silent one is forgotten first.

    Args:
        monotonic: seconds that never step back.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._held: OrderedDict[str, Holding] = OrderedDict()
        self._turn = threading.Lock()

    def note(self, client: str | None, holds: str | None) -> bool:
        """Remember what a request's headers say; whether they say anything that is legal."""
        found = HOLDS.fullmatch(holds or "")
        if client is None or found is None or not CLIENT.fullmatch(client):
            return False
        version, epoch, now = int(found[1]), int(found[2]), self._monotonic()
        with self._turn:
            before = self._held.pop(client, None)
            since = before.since if before is not None and before.kill_epoch == epoch else now
            self._held[client] = Holding(version, epoch, since, now)
            if len(self._held) > MAX_CLIENTS:
                self._held.popitem(last=False)
        return True

    def connected(self) -> frozenset[str]:
        """Clients that were heard of lately."""
        oldest = self._monotonic() - CONNECTED_SECONDS
        with self._turn:
            return frozenset(client for client, held in self._held.items() if held.seen >= oldest)

    def reached(self, kill_epoch: int) -> Mapping[str, float]:
        """Clients that hold that kill epoch or a later one, and for how many seconds, as far as they said."""
        now = self._monotonic()
        with self._turn:
            return {client: now - held.since for client, held in self._held.items() if held.kill_epoch >= kill_epoch}
