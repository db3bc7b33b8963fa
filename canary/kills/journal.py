"""The journal of kill orders in CANARY_HOME: appended to and synced before a kill is acknowledged, read again at every start.

Several processes may share it. A line that was torn by a crash loses itself and nothing else, and no moment at which a process or
the machine may end loses an order that was acknowledged.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from canary.domain.errors import RequestError
from canary.domain.kills import KillOrder, Kills
from canary.flow.ports import Observer

FILE = "kills.jsonl"
TURN_SECONDS = 0.2  # how long another process may keep us from writing; a stopped one must not keep us from killing
STEP_SECONDS = 0.01
TAIL_BYTES = 256  # of what was read, by which a file that was replaced is known; a line has a random id in fewer


class Journal:
    """One file of kill orders, a JSON object a line; while it is compacted, the file before stands beside it as `.old`."""

    def __init__(self, home: Path, observer: Observer) -> None:
        self.path = home / FILE
        self.before = home / f"{FILE}.old"
        self._observer = observer
        self._offset = 0
        self._tail = b""

    def news(self) -> list[KillOrder]:
        """Orders that were written since the last call, by whomever; all of them at the first call and after a compaction.

        Raises:
            OSError: the file cannot be read.
        """
        start = self._offset - len(self._tail)
        block = _content(self.path, start)
        if self._offset == 0 or not block.startswith(self._tail):
            self._offset, self._tail = 0, b""
            block = _content(self.path)
            older = _content(self.before)
        else:
            block, older = block[len(self._tail) :], b""
        whole = block[: block.rfind(b"\n") + 1]
        if whole:
            self._offset += len(whole)
            self._tail = (self._tail + whole)[-TAIL_BYTES:]
        return [order for line in (older + b"\n" + whole).splitlines() if (order := self._read(line)) is not None]

    def append(self, orders: Sequence[KillOrder]) -> None:
        """Write orders and wait until the disk has them.

        Raises:
            OSError: the disk is full or not writable.
        """
        self._append(_lines(orders))

    def compact(self, before: float) -> int:
        """Write the journal anew with what `Kills.compacted` leaves; returns by how many orders it is shorter.

        A line that this version cannot read stays: it may be an order of a later one. While somebody else writes,
        nothing happens.

        Args:
            before: seconds since the epoch; orders taken later stay as they are.

        Raises:
            OSError: the disk is full or not writable; the orders are all there.
        """
        if not self.path.exists():
            return 0
        with _opened(self.path) as descriptor, _turn(descriptor) as ours:
            if not ours or not _is_at(self.path, descriptor):
                return 0
            self._recover()
            content = _content(self.path)
            found = {line: self._read(line) for line in content.splitlines() if line.strip()}
            known = Kills.of(order for order in found.values() if order is not None)
            kept = known.compacted(before)
            fewer = len(known.orders) - len(kept.orders)
            if fewer:
                foreign = [line + b"\n" for line, order in found.items() if order is None]
                self._replace(b"".join(foreign) + _lines(sorted(kept.orders.values())), len(content))
            return fewer

    def _replace(self, content: bytes, known: int) -> None:
        """The new file for the old one; what somebody wrote to the old one meanwhile, who could not wait, is carried over."""
        new = self.path.with_name(f"{FILE}.new")
        with suppress(FileNotFoundError):
            os.unlink(new)
        with _opened(new) as descriptor:
            _write(descriptor, content)
        os.link(self.path, self.before)
        _sync_folder(self.path.parent)
        os.replace(new, self.path)
        _sync_folder(self.path.parent)
        self._recover(known)

    def _recover(self, known: int = 0) -> None:
        """Carry over what is in the file before alone, from a place on, and then let it go."""
        if not self.before.exists():
            return
        there = set(_content(self.path).splitlines())
        missing = [line + b"\n" for line in _content(self.before, known).splitlines() if line.strip() and line not in there]
        if missing:
            self._append(b"".join(missing))
        os.unlink(self.before)
        _sync_folder(self.path.parent)

    def _append(self, lines: bytes) -> None:
        new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with _opened(self.path) as descriptor, _turn(descriptor):
                size = os.fstat(descriptor).st_size
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                _write(descriptor, (b"\n" if torn else b"") + lines)
                # A file that was replaced while we wrote may have been read for the last time; twice is as good as once.
                if _is_at(self.path, descriptor):
                    break
        if new:
            _sync_folder(self.path.parent)

    def _read(self, line: bytes) -> KillOrder | None:
        try:
            return KillOrder.from_dict(json.loads(line)) if line.strip() else None
        except (ValueError, RequestError, RecursionError) as error:
            self._observer.note("kill_order_unreadable", path=str(self.path), error=type(error).__name__)
            return None


def _lines(orders: Sequence[KillOrder]) -> bytes:
    return "".join(json.dumps(order.to_dict(), sort_keys=True) + "\n" for order in orders).encode()


def _content(path: Path, start: int = 0) -> bytes:
    """A file from a place on; nothing where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except FileNotFoundError:
        return b""


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    """All of it, and on the disk."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether a path still leads to an open file, or to none: a file that a person took away is no newer one."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return True


@contextmanager
def _turn(descriptor: int) -> Iterator[bool]:
    """The file's lock, if it can be had in a short while; without it one write in append mode must do."""
    end = time.monotonic() + TURN_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > end:
                yield False
                return
            time.sleep(STEP_SECONDS)
        else:
            yield True
            return


def _sync_folder(folder: Path) -> None:
    """Make the file's name as lasting as its content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
