"""The kill switch of a process that decides and serves no flags: it obeys the kill file and the journal of CANARY_HOME.

It settles what they say, so that no round of decisions moves a route that a person has killed; it undoes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from canary.flow.ports import Observer, Store
from canary.kills.board import KillBoard
from canary.kills.settler import Settler


class StoreOrders:
    """The store's orders, read on from where the last look ended, and told to the board: it must know what was undone."""

    def __init__(self, store: Store, observer: Observer, board: KillBoard) -> None:
        self._store, self._observer, self._board = store, observer, board
        self._cursor = 0
        self._failing = False
        self.settled: frozenset[str] = frozenset()

    def refresh(self) -> None:
        """Read on, now; a failure is noted once per outage."""
        try:
            with self._store.transaction() as tx:
                news = tx.kills.after(self._cursor)
        except Exception as error:
            if not self._failing:
                self._observer.note("kills_not_read", error=type(error).__name__)
            self._failing = True
            return
        self._failing = False
        self._board.join(order for _, order in news)
        self._cursor = max((place for place, _ in news), default=self._cursor)
        self.settled = self.settled.union(order.order_id for _, order in news) & self._board.known.orders.keys()


class KillGuard:
    """Board, store and what is between them.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, store: Store, observer: Observer, board: KillBoard, *, clock: Callable[[], float] = time.time) -> None:
        self._board = board
        self._settler = Settler(store, observer, board, StoreOrders(store, observer, board), clock=clock)

    def start(self) -> None:
        """Look and settle on threads too, between the rounds; a second call does nothing."""
        self._board.start()
        self._settler.start()

    def close(self) -> None:
        self._settler.close()
        self._board.close()

    def obey(self) -> frozenset[str]:
        """Settle what the disk says, now; see `Settler.obey`."""
        return self._settler.obey()
