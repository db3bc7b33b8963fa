"""The kill board: every kill order that this process knows, in memory first, then on disk, then wherever it must go.

Taking a kill waits for no store, no peer and no other thread; what is known here only grows.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from canary.api.journal import Journal
from canary.domain.kills import ALL, KillOrder, Kills, read_kill_file
from canary.flow.ports import Observer

KILL_FILE = "kill"
FILE_ACTOR = "kill file"
LOOK_SECONDS = 0.1
CLOSE_SECONDS = 5.0
MAX_KILL_FILE = 1024 * 1024

Listener = Callable[[], object]


class KillBoard:
    """Kill orders, and the kill file of CANARY_HOME.

    Args:
        home: the folder of journal and kill file; None keeps nothing on disk.
        clock: seconds since the epoch.
    """

    def __init__(self, observer: Observer, home: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._observer = observer
        self._clock = clock
        self._journal = None if home is None else Journal(home, observer)
        self._file = None if home is None else home / KILL_FILE
        self._text: str | None = ""
        self._known = Kills()
        self._named: Mapping[str, str] = {}
        self._listeners: list[Listener] = []
        self._turn = threading.RLock()
        self._failing: set[str] = set()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
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

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener`, on any thread, after every change; returns what ends it. It must be quick and must not raise."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def kill(self, scope: str, reason: str, actor: str, *, above: int = 0, order_id: str | None = None) -> KillOrder:
        """Take a kill: served from now on, and on disk when this returns.

        Args:
            scope: a route, `*` for all, or the drill's flag.
            above: kill epoch of the flags that are served.
            order_id: a new one by default.

        Returns:
            The order; the one that stands already, if the scope is killed.

        Raises:
            RequestError: a value is out of range.
        """
        with self._turn:
            if standing := self._known.standing(scope):
                return standing[0]
            order = self._known.kill(scope, reason, actor, self._clock(), order_id or secrets.token_hex(16), above=above)
            self._take([order])
        self._write([order])
        return order

    def unkill(self, scope: str, reason: str, actor: str, *, above: int = 0) -> KillOrder | None:
        """Undo what stands here, for flags that are no route's; a route's kill is undone in the store (`flow.kills`)."""
        with self._turn:
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
            new = [order for order in new if before.orders.get(order.order_id) != self._known.orders[order.order_id]]
        if new:
            self._write(new)
        return new

    def look(self) -> None:
        """Read what others wrote to the journal, and the kill file; a failure is noted once and undoes nothing."""
        self._tried("journal", self._read_journal)
        self._tried("kill_file", self._read_file)

    def start(self) -> None:
        """Start looking every 100 ms; a second call does nothing."""
        if self._thread is None and self._journal is not None:
            self._closed.clear()
            self._thread = threading.Thread(target=self._run, name="canary-kill-board", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closed.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self.look()

    def _take(self, orders: Iterable[KillOrder]) -> None:
        self._known = self._known.join(Kills.of(orders))
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
        """Take a kill for every scope that the file newly names; taking a line out again does not undo it."""
        if self._file is None:
            return
        try:
            with self._file.open("rb") as file:
                text = file.read(MAX_KILL_FILE).decode(errors="replace")
        except FileNotFoundError:
            text = ""
        except OSError:
            # Somebody put it there for a reason, so until it can be read everything is off.
            self._name(None, {ALL: "the kill file cannot be read"})
            raise
        if text != self._text:
            self._name(text, read_kill_file(text))
            for scope, reason in self._named.items():
                self.kill(scope, reason, FILE_ACTOR, order_id=self._file_order(scope, reason))

    def _name(self, text: str | None, named: Mapping[str, str]) -> None:
        changed, self._text, self._named = named != self._named, text, named
        if changed:
            self._tell()

    def _file_order(self, scope: str, reason: str) -> str:
        """The same id in every process that reads this file, so that they take one order."""
        return hashlib.sha256(f"{self._file}\n{scope}\n{reason}\n{self._known.epoch}".encode()).hexdigest()[:32]

    def _tried(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # the kill path outlives whatever a disk does
            if what not in self._failing:
                self._observer.note("kill_board_failed", what=what, error=type(error).__name__)
            self._failing.add(what)
        else:
            self._failing.discard(what)
