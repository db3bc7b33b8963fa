"""The last flag snapshot on disk, for a start while the store is away; replaced whole, never edited."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from canary.api.keyring import write_private
from canary.domain.flag import Snapshot
from canary.flow.ports import Observer

FILE = "flags.json"
AGAIN_SECONDS = 10.0  # an unchanged snapshot is written again only this often, so that its age on disk stays true


@dataclass(frozen=True, slots=True)
class Kept:
    """What was on disk.

    Args:
        snapshot: as the store last said it; `issued_at` is when.
        settled: ids of the kill orders that it contains.
    """

    snapshot: Snapshot
    settled: frozenset[str]


class KeptFlags:
    """One file in a folder.

    Args:
        monotonic: seconds that never step back.
    """

    def __init__(self, home: Path, observer: Observer, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = home / FILE
        self._observer = observer
        self._monotonic = monotonic
        self._written: tuple[str, frozenset[str]] | None = None
        self._written_at = 0.0
        self._failing = False

    def keep(self, snapshot: Snapshot, settled: frozenset[str]) -> None:
        """Write the snapshot if it changed or was written long ago; a full disk is noted once and stops nothing."""
        content, now = (snapshot.to_json(), settled), self._monotonic()
        if content == self._written and now - self._written_at < AGAIN_SECONDS:
            return
        record = {"issued_at": snapshot.issued_at, "settled": sorted(settled), "snapshot": content[0]}
        try:
            write_private(self._path, json.dumps(record))
        except OSError as error:
            if not self._failing:
                self._observer.note("flags_not_kept", error=error.strerror or type(error).__name__)
            self._failing = True
            return
        self._failing, self._written, self._written_at = False, content, now

    def read(self) -> Kept | None:
        """What an earlier process kept; None where there is nothing that can be read."""
        try:
            record = json.loads(self._path.read_text())
            snapshot = Snapshot.from_json(record["snapshot"], float(record["issued_at"]))
            return Kept(snapshot, frozenset(map(str, record["settled"])))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self._observer.note("kept_flags_unreadable", error=type(error).__name__)
            return None
