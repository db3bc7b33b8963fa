"""Brings kill orders from the board into the store, for as long as it takes; nothing that serves or takes a kill waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from canary.domain.errors import UnreachableError
from canary.domain.kills import ends_first
from canary.flow.kills import settle
from canary.flow.loop import Loop
from canary.flow.ports import Observer, Store
from canary.kills.board import KillBoard

FIRST_PAUSE_SECONDS = 0.25
LAST_PAUSE_SECONDS = 2.0
IDLE_SECONDS = 5.0


class Seen(Protocol):
    """What was read of the store's orders."""

    @property
    def settled(self) -> frozenset[str]:
        """Ids of the orders that the store has, as far as it was read and the board knows them."""

    def refresh(self) -> None:
        """Read on, and let the board know; a failure changes nothing."""


class Settler:
    """One thread that settles what the store does not have yet.

    Args:
        seen: what reads the store's orders, the flag snapshot in a process that serves it.
        clock: seconds since the epoch.
    """

    def __init__(
        self, store: Store, observer: Observer, board: KillBoard, seen: Seen, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._observer = observer
        self._board = board
        self._seen = seen
        self._clock = clock
        self._done: frozenset[str] = frozenset()
        self._failing = False
        self._pause = FIRST_PAUSE_SECONDS
        self._moved = threading.Condition()
        self._loop = Loop("canary-kill-settler", self._step, observer)
        board.listen(self._loop.wake)

    @property
    def pending(self) -> int:
        """Orders that the store does not have, as far as is known."""
        return len(self._missing())

    def start(self) -> None:
        """Start settling; a second call does nothing."""
        self._loop.start()

    def close(self) -> None:
        """Stop; what is not settled yet is settled after the next start."""
        self._loop.close()

    def wait(self, order_id: str, seconds: float) -> bool:
        """Wait until the store has an order; whether it has."""
        with self._moved:
            return self._moved.wait_for(lambda: order_id in self._done or order_id in self._seen.settled, seconds)

    def round(self) -> bool:
        """Settle once what is missing; whether nothing is missing afterwards."""
        known = self._board.known
        missing = self._missing()
        for order in sorted((o for o in known.orders.values() if o.order_id in missing), key=ends_first):
            try:
                settle(self._store, known, [order], self._clock())
            except Exception as error:
                if not self._failing:
                    self._observer.note("kill_not_settled", scope=order.scope, error=type(error).__name__)
                self._failing = True
                if isinstance(error, UnreachableError):
                    return False
                continue
            self._done = self._done | {order.order_id}
            self._seen.refresh()
            with self._moved:
                self._moved.notify_all()
        settled = not self._missing()
        self._failing = self._failing and not settled
        return settled

    def obey(self) -> frozenset[str]:
        """Look at the disk and settle what it says, now: called before anything decides about a route.

        Returns:
            Scopes that are killed here and not in the store yet, `*` among them: nobody may move those routes meanwhile.
        """
        self._board.look()
        self._seen.refresh()
        self.round()
        known, missing = self._board.known, self._missing()
        unsettled = {o.scope for o in known.orders.values() if o.order_id in missing and o in known.standing(o.scope)}
        unordered = {scope for scope in self._board.named if not known.standing(scope)}  # a kill file that cannot be read
        return frozenset(unsettled | unordered)

    def _missing(self) -> frozenset[str]:
        return frozenset(self._board.known.orders) - self._seen.settled - self._done

    def _step(self) -> float:
        if self.round():
            self._pause = FIRST_PAUSE_SECONDS
            return IDLE_SECONDS
        self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS)
        return self._pause
