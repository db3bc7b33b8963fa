"""What guards one embedded server: its private socket directory and its locks. Knows nothing of Postgres's own files."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from canary.domain.errors import UnreachableError
from canary.store.binaries import REMEDY

MAX_SOCKET_PATH = 107
SOCKET = ".s.PGSQL.5432"


def socket_dir(data: Path) -> Path:
    """A short path of its own for each data directory; the socket's path may have 107 bytes."""
    name = f"canary-{hashlib.blake2b(os.fsencode(data.resolve()), digest_size=8).hexdigest()}"
    path = Path(tempfile.gettempdir()) / name
    return path if len(os.fsencode(path / SOCKET)) <= MAX_SOCKET_PATH else Path("/tmp") / name


def check_private(directory: Path, data: Path) -> None:
    """Refuse a socket directory that somebody else may have made, since its name can be guessed.

    Args:
        data: the data directory, whose owner may own it too.

    Raises:
        UnreachableError: it exists, and is not a directory of ours that is closed to others.
    """
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return
    owners = {os.geteuid(), data.stat().st_uid} if data.exists() else {os.geteuid()}
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners or stat.S_IMODE(found.st_mode) != 0o700:
        raise UnreachableError(
            "the socket directory belongs to somebody else or is open to others",
            where=str(directory),
            remedy=f"Remove it. {REMEDY}",
        )


def make_private(directory: Path, data: Path) -> None:
    """Make the socket directory unless it is there, and check it either way."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    check_private(directory, data)


def works_in(pid: int, directory: Path) -> bool:
    """Whether the process has its working directory there, as every process of a running Postgres has."""
    try:
        return Path(f"/proc/{pid}/cwd").samefile(directory)
    except OSError:
        return False


def try_lock(descriptor: int) -> bool:
    """Take the lock if nobody has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock, waiting for it."""
    with path.open("w") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield
