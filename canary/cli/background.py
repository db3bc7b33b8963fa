"""What `canary serve` runs beside its HTTP server: the control loop, and the engine worker in a process of its own.

Neither may take the server down: a failure is noted and tried again.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from canary.domain.errors import CanaryError
from canary.flow.ports import Observer, Store

TICK_SECONDS = 1.0
HOUSEKEEPING_SECONDS = 3_600.0
FIRST_RESTART_SECONDS = 1.0
LAST_RESTART_SECONDS = 60.0
HEALTHY_SECONDS = 60.0
STOP_SECONDS = 30.0
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here, since a forked child must not load anything

Tick = Callable[[Store, str, float, Observer], object]


class ControlLoop:
    """Assesses, decides and publishes every route in turn.

    Args:
        tick: `flow.walk.control.tick`.
        seconds: pause between rounds.
        housekeeping: called at the start and then once an hour.
    """

    def __init__(
        self,
        store: Store,
        observer: Observer,
        tick: Tick,
        *,
        seconds: float = TICK_SECONDS,
        housekeeping: Callable[[], object] = lambda: None,
    ) -> None:
        self._housekeeping = housekeeping
        self._kept_at = -math.inf
        self._store = store
        self._observer = observer
        self._tick = tick
        self._seconds = seconds
        self._stopping = threading.Event()
        self._failing: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="canary-control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the route in hand."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def round(self) -> None:
        """Tick every route once; one route's failure does not reach the others."""
        try:
            if time.monotonic() - self._kept_at > HOUSEKEEPING_SECONDS:
                self._housekeeping()
                self._kept_at = time.monotonic()
            with self._store.transaction() as tx:
                routes = [rollout.route for rollout in tx.rollouts.list()]
        except CanaryError as error:
            self._note("", error)
            return
        self._failing.discard("")
        for route in routes:
            if self._stopping.is_set():
                return
            try:
                self._tick(self._store, route, time.time(), self._observer)
            except Exception as error:
                self._note(route, error)
            else:
                self._failing.discard(route)

    def _note(self, route: str, error: Exception) -> None:
        """Say it once per outage, not once per round; the text of a foreign error may hold a row, so only its type is told."""
        if route not in self._failing:
            said = str(error) if isinstance(error, CanaryError) else type(error).__name__
            self._observer.note("control_failed", route=route, error=said)
        self._failing.add(route)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.round()
            self._stopping.wait(self._seconds)


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


def worker_environment(home: str, database_url: str) -> dict[str, str]:
    """This process's environment with the server's own database."""
    return {**os.environ, "CANARY_HOME": home, "CANARY_DATABASE_URL": database_url, "HF_HUB_OFFLINE": "1"}
