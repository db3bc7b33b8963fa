"""The last snapshot on disk, so that a gateway that starts while the control plane is away does not start blind.

A file that cannot be read is no file, and one that cannot be written costs nothing but the next cold start: nothing here raises.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

from canary.domain.flag import Snapshot

FORMAT = 1


def write(path: Path, snapshot: Snapshot, etag: str, vouched_at: float) -> bool:
    """Replace the file at once, readable by its owner only; whether that went well.

    Args:
        vouched_at: seconds since the epoch at which the store last vouched for the snapshot.
    """
    body = {"format": FORMAT, "etag": etag, "vouched_at": vouched_at, "snapshot": json.loads(snapshot.to_json())}
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # `mkstemp` makes the file 0600; the rename leaves either the old file or the whole new one.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(body, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, ValueError):
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    return True


def read(path: Path, now: float) -> tuple[Snapshot, str, float] | None:
    """What was written last.

    Args:
        now: seconds since the epoch.

    Returns:
        The snapshot, its ETag and its age in seconds; None if there is no usable file. A file from the future was written by a
        clock that cannot be compared with ours, so its age is taken to be without bound.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["format"] != FORMAT:
            return None
        vouched_at = float(body["vouched_at"])
        snapshot = Snapshot.from_json(json.dumps(body["snapshot"]), issued_at=vouched_at)
        etag = str(body["etag"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    age = now - vouched_at
    return snapshot, etag, age if age >= 0 else float("inf")
