"""The kill board: every kill order that this process knows, in memory first, then on disk, then wherever it must go.

Taking a kill waits for no store, no peer and no other thread; what is known here only grows.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from canary.domain.kills import ALL, KillOrder, Kills, read_kill_file
from canary.flow.loop import Loop
from canary.flow.ports import Observer
from canary.kills.journal import Journal

KILL_FILE = "kill"
FILE_ACTOR = "kill file"
LOOK_SECONDS = 0.1
MAX_KILL_FILE = 1024 * 1024
UNREADABLE = "the kill file cannot be read"

Listener = Callable[[], object]


class KillBoard:
    """Kill orders, and the kill file of CANARY_HOME.

    Args:
        home: the folder of journal and kill file; None keeps nothing on disk.
        lifetime: seconds after which orders that are over are kept in short (`Kills.compacted`); None keeps them as they are.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        observer: Observer,
        home: Path | None = None,
        *,
        lifetime: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._observer = observer
        self._lifetime = lifetime
        self._clock = clock
        self._journal = None if home is None else Journal(home, observer)
        self._file = None if home is None else home.absolute() / KILL_FILE
        self._text: str | None = ""
        self._known = Kills()
        self._above = 0
        self._named: Mapping[str, str] = {}
        self._listeners: list[Listener] = []
        self._turn = threading.RLock()
        self._failing: set[str] = set()
        self._loop = Loop("canary-kill-board", self._step, observer)
        self.look()

    @property
    def known(self) -> Kills:
        """Every order that is known here."""
        return self._known

    @property
    def named(self) -> Mapping[str, str]:
        """What the kill file names now: scope -> reason."""
        return self._named

    @property
    def on_disk(self) -> bool:
        """Whether the last orders reached a disk."""
        return self._journal is not None and "journal" not in self._failing

    def rise(self, epoch: int) -> None:
        """Let the epoch of every later order be above one that flags were seen with."""
        self._above = max(self._above, epoch)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener`, on any thread, after every change; returns what ends it. It must be quick and must not raise."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def kill(self, scope: str, reason: str, actor: str, *, above: int = 0, order_id: str | None = None) -> KillOrder:
        """Take a kill: served from now on, and on disk when this returns.

        Args:
            scope: a route, `*` for all, or the drill's flag.
            above: an epoch that the order's must exceed, beside those that `rise` told of.
            order_id: a new one by default.

        Returns:
            The order; the one that stands already, if the scope is killed.

        Raises:
            RequestError: a value is out of range.
        """
        with self._turn:
            if standing := self._known.standing(scope):
                return standing[0]
            above, chosen = max(above, self._above), order_id or secrets.token_hex(16)
            order = self._known.kill(scope, reason, actor, self._clock(), chosen, above=above)
            self._take([order])
        self._write([order])
        return order

    def unkill(self, scope: str, reason: str, actor: str, *, above: int = 0) -> KillOrder | None:
        """Undo what stands here, for flags that are no route's; a route's kill is undone in the store (`flow.kills`)."""
        with self._turn:
            above = max(above, self._above)
            order = self._known.unkill(scope, reason, actor, self._clock(), secrets.token_hex(16), above=above)
            if order is None:
                return None
            self._take([order])
        self._write([order])
        return order

    def join(self, orders: Iterable[KillOrder]) -> list[KillOrder]:
        """Learn orders from a peer or the store; returns those that were new, which are on disk too by then."""
        with self._turn:
            new = [order for order in orders if self._known.orders.get(order.order_id) != order]
            before = self._known
            if new:
                self._take(new)
            new = [order for order in new if before.orders.get(order.order_id) != self._known.orders.get(order.order_id)]
        if new:
            self._write(new)
        return new

    def look(self) -> None:
        """Read what others wrote to the journal, and the kill file; a failure is noted once and undoes nothing."""
        self._tried("journal", self._read_journal)
        self._tried("kill_file", self._read_file)

    def start(self) -> None:
        """Shorten the journal, and look every 100 ms from now on; a second call does nothing."""
        if (journal := self._journal) is not None:
            if self._lifetime is not None:
                self._tried("compaction", lambda: journal.compact(self._horizon()))
            self._loop.start()

    def close(self) -> None:
        """Stop looking; what is known stays."""
        self._loop.close()

    def _step(self) -> float:
        self.look()
        return LOOK_SECONDS

    def _horizon(self) -> float:
        """Moment before which what is over is kept in short."""
        return -math.inf if self._lifetime is None else self._clock() - self._lifetime

    def _take(self, orders: Iterable[KillOrder]) -> None:
        before = self._known
        self._known = before.join(Kills.of(orders)).compacted(self._horizon())
        if self._known != before:
            self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    def _write(self, orders: list[KillOrder]) -> None:
        """To disk; without one the kill stands all the same, here and wherever it is sent."""
        if (journal := self._journal) is not None:
            self._tried("journal", lambda: journal.append(orders))

    def _read_journal(self) -> None:
        if self._journal is None:
            return
        with self._turn:
            new = [o for o in self._journal.news() if self._known.orders.get(o.order_id) != o]
            if new:
                self._take(new)

    def _read_file(self) -> None:
        """See that a kill stands for every scope that the file names; taking a line out again does not undo it."""
        if self._file is None:
            return
        try:
            with self._file.open("rb") as file:
                text = file.read(MAX_KILL_FILE).decode(errors="replace")
        except FileNotFoundError:
            text = ""
        except OSError:
            # Somebody put it there for a reason, so until it can be read everything is off.
            self._name(None, {ALL: UNREADABLE})
            raise
        if text != self._text:
            self._name(text, read_kill_file(text))
        for scope, reason in self._named.items():
            if not self._known.standing(scope):
                self.kill(scope, reason, FILE_ACTOR, order_id=self._file_order(scope, reason))

    def _name(self, text: str | None, named: Mapping[str, str]) -> None:
        """What the file names from now on."""
        changed, was_unreadable = named != self._named, self._text is None
        self._text, self._named = text, named
        if was_unreadable and text is not None and not self._known.standing(ALL):
            self._pass_over()
        if changed:
            self._tell()

    def _pass_over(self) -> None:
        """A kill that was served without an order, and its end, become orders: without a higher epoch clients would keep it."""
        with self._turn:
            served = self._known.kill(ALL, UNREADABLE, FILE_ACTOR, self._clock(), secrets.token_hex(16), above=self._above)
            known = self._known.join(Kills.of([served]))
            over = known.unkill(ALL, "the kill file can be read again", FILE_ACTOR, self._clock(), secrets.token_hex(16))
            pair = [served] if over is None else [served, over]
            self._take(pair)
        self._write(pair)

    def _file_order(self, scope: str, reason: str) -> str:
        """The same id in every process that reads this file, so that they take one order."""
        return hashlib.sha256(f"{self._file}\n{scope}\n{reason}\n{self._known.epoch_of(scope)}".encode()).hexdigest()[:32]

    def _tried(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # the kill path outlives whatever a disk does
            if what not in self._failing:
                self._observer.note("kill_board_failed", what=what, error=type(error).__name__)
            self._failing.add(what)
        else:
            self._failing.discard(what)
