"""One thing done again and again on a thread of its own; it ends when it is closed, and no error ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from canary.flow.ports import Observer

CLOSE_SECONDS = 5.0
FAILED_SECONDS = 1.0


class Loop:
    """A daemon thread that calls `step`, waits, and calls it again.

    Args:
        name: of the thread, and in the note of a failure.
        step: does it once; returns for how many seconds to wait. What it raises is noted once per outage and tried again.
    """

    def __init__(self, name: str, step: Callable[[], float], observer: Observer) -> None:
        self._name, self._step, self._observer = name, step, observer
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing = False

    def start(self) -> None:
        """Begin; a second call does nothing."""
        if self._thread is None:
            self._closed = threading.Event()  # a thread that outlived its `close` must not come back to life
            self._thread = threading.Thread(target=self._run, args=(self._closed,), name=self._name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """End the wait; the next step begins at once, on the thread."""
        self._wake.set()

    def close(self) -> None:
        """End after the step that is under way, for which nobody waits for ever."""
        self._closed.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    def _run(self, closed: threading.Event) -> None:
        while True:
            self._wake.clear()
            # Asked after clearing: a `close` between the two has woken us already.
            if closed.is_set():
                return
            self._wake.wait(self._once())

    def _once(self) -> float:
        try:
            pause = self._step()
        except Exception as error:
            if not self._failing:
                self._observer.note("loop_failed", loop=self._name, error=type(error).__name__)
            self._failing = True
            return FAILED_SECONDS
        self._failing = False
        return pause
