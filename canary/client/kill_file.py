"""A gateway's own kill file: one route a line, or `*` for all, obeyed with no control plane and no network.

It can only kill. A file that is there and cannot be read kills everything, since somebody put it there for a reason.
"""

from __future__ import annotations

import os
from pathlib import Path

from canary.domain.kills import ALL, read_kill_file

WATCH_SECONDS = 0.1
SETTLED_SECONDS = 2.0  # file systems stamp coarsely, so a younger file may change without a new stamp


class KillFile:
    """What the file kills, read again whenever it may have changed.

    Args:
        path: need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] | None = None
        self._settled = False
        self.killed: frozenset[str] = frozenset()

    def look(self, now: float) -> bool:
        """Look once; whether anything changed.

        Args:
            now: seconds since the epoch.
        """
        before = self.killed
        try:
            found = os.stat(self._path)
            stamp = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
            if stamp != self._stamp or not self._settled:
                text = self._path.read_text(encoding="utf-8", errors="replace")
                self.killed = frozenset(read_kill_file(text))
                self._settled = now - found.st_mtime > SETTLED_SECONDS
            self._stamp = stamp
        except FileNotFoundError:
            self._stamp, self.killed = None, frozenset()
        except OSError:
            self._stamp, self.killed = None, frozenset({ALL})
        return self.killed != before
