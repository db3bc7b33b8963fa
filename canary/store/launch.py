"""Turns into a Postgres program: run as a script by `embedded`, with nothing but the standard library.

Postgres refuses to run as root and must not outlive its owner. Both are settled here, between fork and exec, in a process of its
own: a `preexec_fn` in a process with threads may deadlock. It must never import the rest of Canary.

Usage: launch.py OWNER_PID IDENTITY PROGRAM ARGUMENT...
where IDENTITY is `self`, `namespace` (an unprivileged user namespace over the same files) or `UID:GID`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
NOBODY = 65534


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_namespace(libc: ctypes.CDLL) -> None:
    """Map our own uid and gid to `nobody` in a new user namespace, so that the program does not see root."""
    uid, gid = os.geteuid(), os.getegid()
    _check(libc.unshare(CLONE_NEWUSER), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{NOBODY} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{NOBODY} {gid} 1")


def become(identity: str) -> None:
    """Run with the group and user ids of `UID:GID`."""
    uid, gid = (int(part) for part in identity.split(":"))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def main(owner: int, identity: str, program: list[str]) -> None:
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if identity == "namespace":
            enter_namespace(libc)
        elif identity != "self":
            become(identity)
        # After the change of identity, which clears it. SIGINT is Postgres's fast shutdown.
        _check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0), "prctl")
    elif identity != "self":
        become(identity)
    if os.getppid() != owner:
        raise SystemExit("the owner is gone")
    os.execv(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
