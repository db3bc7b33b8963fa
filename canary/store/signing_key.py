"""The key that signs flag documents, as a file in the home folder: made once, readable by its owner only, never replaced."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from canary.domain.errors import UsageError
from canary.flow.tools.signed import RAW_BYTES, SigningKey

FILE = "flags-ed25519.key"


def load_or_create(home: Path) -> SigningKey:
    """The home's key; several processes that start at once end up with the same one.

    Raises:
        UsageError: the file is there and is no key.
    """
    path = home / FILE
    home.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _create(path)
    seed = path.read_bytes()
    if len(seed) != RAW_BYTES:
        raise UsageError(
            f"{len(seed)} bytes are no signing key", where=str(path), remedy="Restore it, or remove it and hand out the new key."
        )
    return SigningKey(seed)


def _create(path: Path) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(SigningKey.new().seed)
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, never replaces the key that somebody else has made meanwhile.
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
