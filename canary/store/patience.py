"""Opens a database that may be away: what needs it is tried until it succeeds, so that a service can start and kill meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

from canary.domain.errors import UnreachableError

FIRST_SECONDS = 15.0  # how long a start waits before it goes on without
PAUSE_SECONDS = 1.0


class Patience:
    """Tries one thing on a thread until it succeeds or is given up.

    Args:
        attempt: raises UnreachableError while the time is not ripe; any other error is final.
        tell: called once, with the first error's sentence, when the start goes on without.
    """

    def __init__(self, attempt: Callable[[], object], tell: Callable[[str], object]) -> None:
        self._attempt = attempt
        self._tell = tell
        self._tried = threading.Event()
        self._closed = threading.Event()
        self._final: Exception | None = None
        self._said = "no answer yet"
        self._done = False
        self._thread = threading.Thread(target=self._run, name="canary-database-opener", daemon=True)

    def begin(self, seconds: float = FIRST_SECONDS) -> bool:
        """Try once, for so long at most; then go on trying aside. Whether it succeeded already.

        Raises:
            CanaryError: it can never succeed.
        """
        self._thread.start()
        self._tried.wait(seconds)
        if self._final is not None:
            raise self._final
        if not self._done:
            self._tell(self._said)
        return self._done

    def close(self, seconds: float = PAUSE_SECONDS) -> None:
        """Stop trying; an attempt that hangs is left to the process's end."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._attempt()
                self._done = True
                return
            except UnreachableError as error:
                self._said = str(error)
            except Exception as error:
                self._final = error
                return
            finally:
                self._tried.set()
            self._closed.wait(PAUSE_SECONDS)
