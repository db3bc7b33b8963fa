"""The journal of kill orders in CANARY_HOME: appended to and synced before a kill is acknowledged, read again at every start.

Several processes may share it. A line that was torn by a crash loses itself and nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from canary.domain.errors import RequestError
from canary.domain.kills import KillOrder
from canary.flow.ports import Observer

FILE = "kills.jsonl"
TURN_SECONDS = 0.2  # how long another process may keep us from writing; a stopped one must not keep us from killing
STEP_SECONDS = 0.01


class Journal:
    """One file of kill orders, a JSON object a line."""

    def __init__(self, home: Path, observer: Observer) -> None:
        self.path = home / FILE
        self._observer = observer
        self._offset = 0

    def news(self) -> list[KillOrder]:
        """Orders that were written since the last call, by whomever; the first call gives all of them.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                block = file.read()
        except FileNotFoundError:
            return []
        whole = block.rpartition(b"\n")[0]
        self._offset += len(whole) + 1 if whole else 0
        return [order for line in whole.splitlines() if (order := self._read(line)) is not None]

    def append(self, orders: Sequence[KillOrder]) -> None:
        """Write orders and wait until the disk has them.

        Raises:
            OSError: the disk is full or not writable.
        """
        new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(order.to_dict(), sort_keys=True) + "\n" for order in orders).encode()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            with _turn(descriptor):
                size = os.fstat(descriptor).st_size
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, (b"\n" if torn else b"") + lines)
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            _sync_folder(self.path.parent)

    def _read(self, line: bytes) -> KillOrder | None:
        try:
            return KillOrder.from_dict(json.loads(line)) if line.strip() else None
        except (ValueError, RequestError, RecursionError) as error:
            self._observer.note("kill_order_unreadable", path=str(self.path), error=type(error).__name__)
            return None


@contextmanager
def _turn(descriptor: int) -> Iterator[None]:
    """The file's lock, for a short while; without it one write in append mode must do."""
    end = time.monotonic() + TURN_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > end:
                break
            time.sleep(STEP_SECONDS)
    yield


def _sync_folder(folder: Path) -> None:
    """Make the file's name as lasting as its content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
