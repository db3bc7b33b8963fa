"""What `canary serve` runs beside its HTTP server: the scheduler, and the engine worker in a process of its own.

Neither may take the server down: a failure is noted and tried again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from canary.config import Settings
from canary.flow.leading import Leadership
from canary.flow.ports import Observer, Store
from canary.flow.walk.control import tick
from canary.jobs.scheduler import Scheduler
from canary.jobs.tasks import Children, Obey, work_of
from canary.wiring import leader_lock

FIRST_RESTART_SECONDS = 1.0
LAST_RESTART_SECONDS = 60.0
HEALTHY_SECONDS = 60.0
STOP_SECONDS = 30.0
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here, since a forked child must not load anything


def scheduler_of(
    store: Store,
    chosen: Settings,
    observer: Observer,
    children: Children,
    obey: Obey,
    kill_drill: Callable[[], str] | None = None,
) -> Scheduler:
    """The jobs of one process, run while it leads.

    Args:
        children: what jobs run beside it; stopped before the scheduler is.
        obey: settles the kills that this process knows of, before each round of assessment.
        kill_drill: runs a kill drill, where clients are connected to this process.
    """
    holder = f"{socket.gethostname()}:{os.getpid()}"
    leadership = Leadership(store, leader_lock(store), holder, observer, time.time)
    fenced = partial(tick, fence=leadership.fence)
    work = work_of(store, chosen, fenced, observer, children, obey=obey, kill_drill=kill_drill)
    return Scheduler(store, leadership, work, observer)


class WorkerProcess:
    """Keeps one child process running: restarted with growing pauses when it ends, stopped with the server.

    Args:
        command: what to run.
        environment: the child's whole environment.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], observer: Observer) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._observer = observer
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="canary-worker", daemon=True)

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the child to give its leases back and end; kill it if it does not."""
        with self._starting:
            self._stopping.set()
            child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause = FIRST_RESTART_SECONDS
        while not self._stopping.is_set():
            started = time.monotonic()
            with self._starting:
                if self._stopping.is_set():
                    return
                # The kernel's parent-death signal follows the thread that started the child: this one, which outlives it.
                self._child = subprocess.Popen(
                    self._command, env=self._environment, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent
                )
            code = self._child.wait()
            if self._stopping.is_set():
                return
            pause = (
                FIRST_RESTART_SECONDS if time.monotonic() - started > HEALTHY_SECONDS else min(pause * 2, LAST_RESTART_SECONDS)
            )
            self._observer.note("worker_ended", code=code, again_in_seconds=pause)
            self._stopping.wait(pause)


def die_with_parent() -> None:
    """In the child: end with the server, even if the server is killed."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def worker_command() -> list[str]:
    """The engine worker as its own process, so that the server never loads torch."""
    return [sys.executable, "-m", "canary.cli", "worker"]


def worker_environment(home: str, database_url: str | None) -> dict[str, str]:
    """This process's environment with the server's own database, for its children.

    Args:
        database_url: None leaves it to the child, which finds the embedded server of the same home.
    """
    own = {} if database_url is None else {"CANARY_DATABASE_URL": database_url}
    return {**os.environ, "CANARY_HOME": home, "HF_HUB_OFFLINE": "1", **own}
