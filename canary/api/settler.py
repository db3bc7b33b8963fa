"""Brings kill orders from the board into the store, for as long as it takes; nothing that serves or takes a kill waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from canary.api.board import KillBoard
from canary.api.flags import FlagCache
from canary.domain.errors import UnreachableError
from canary.flow.kills import settle
from canary.flow.ports import Observer, Store

FIRST_PAUSE_SECONDS = 0.25
LAST_PAUSE_SECONDS = 2.0
IDLE_SECONDS = 5.0
CLOSE_SECONDS = 5.0


class Settler:
    """One thread that settles what the store does not have yet.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(
        self, store: Store, observer: Observer, board: KillBoard, flags: FlagCache, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._observer = observer
        self._board = board
        self._flags = flags
        self._clock = clock
        self._done: frozenset[str] = frozenset()
        self._failing = False
        self._wake = threading.Event()
        self._moved = threading.Condition()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        board.listen(self._wake.set)

    @property
    def pending(self) -> int:
        """Orders that the store does not have, as far as is known."""
        return len(self._missing())

    def start(self) -> None:
        """Start settling; a second call does nothing."""
        if self._thread is None:
            self._closed.clear()
            self._thread = threading.Thread(target=self._run, name="canary-kill-settler", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop; what is not settled yet is settled after the next start."""
        self._closed.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    def wait(self, order_id: str, seconds: float) -> bool:
        """Wait until the store has an order; whether it has."""
        with self._moved:
            return self._moved.wait_for(lambda: order_id in self._done or order_id in self._flags.settled, seconds)

    def round(self) -> bool:
        """Settle once what is missing; whether nothing is missing afterwards."""
        known = self._board.known
        for order in sorted(known.orders[order_id] for order_id in self._missing()):
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
            self._flags.refresh()
            with self._moved:
                self._moved.notify_all()
        settled = not self._missing()
        self._failing = self._failing and not settled
        return settled

    def _missing(self) -> frozenset[str]:
        return frozenset(self._board.known.orders) - self._flags.settled - self._done

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._closed.is_set():
            self._wake.clear()
            settled = self.round()
            pause = FIRST_PAUSE_SECONDS if settled else min(2 * pause, LAST_PAUSE_SECONDS)
            self._wake.wait(IDLE_SECONDS if settled else pause)
