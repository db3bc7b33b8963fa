"""The flag snapshot in memory, refreshed by one thread; whoever reads it never waits for the store.

With the store away the last snapshot stays and its age grows, so that readers can judge it themselves.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from canary.domain.flag import Snapshot
from canary.flow.ports import Observer, Store

REFRESH_SECONDS = 0.25
CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Published:
    """A snapshot as it is served.

    Args:
        body: the canonical JSON.
        etag: strong, quoted, over the body.
        read_at: monotonic moment at which the store vouched for it.
    """

    snapshot: Snapshot
    body: bytes
    etag: str
    read_at: float


class FlagCache:
    """The newest snapshot of a store.

    Args:
        refresh_seconds: time between looks at the store; the bound on how late a kill by another process is seen.
        clock, monotonic: seconds since the epoch, and seconds that never step back.
    """

    def __init__(
        self,
        store: Store,
        observer: Observer,
        *,
        refresh_seconds: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._observer = observer
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._monotonic = monotonic
        self._published: Published | None = None
        self._failing = False
        self._refreshing = threading.Lock()
        self._closed = threading.Event()
        self._read_once = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start refreshing; a second call does nothing."""
        if self._thread is None:
            self._closed.clear()
            self._thread = threading.Thread(target=self._run, name="canary-flag-cache", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closed.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    def wait_first(self, seconds: float) -> bool:
        """Wait for the first look at the store, whether or not it answered; for start-up, never for a request."""
        return self._read_once.wait(seconds)

    @property
    def published(self) -> Published | None:
        """What is served, None before the store first answered."""
        return self._published

    @property
    def age_seconds(self) -> float | None:
        published = self._published
        return None if published is None else max(0.0, self._monotonic() - published.read_at)

    def refresh(self) -> None:
        """Read the store once, now; a failure leaves the last snapshot and is noted once per outage."""
        # Held over reading and keeping, so that an older read can never replace a newer one.
        with self._refreshing:
            asked_at = self._monotonic()
            try:
                with self._store.transaction() as tx:
                    snapshot = tx.flags.snapshot(self._clock())
            except Exception as error:
                if not self._failing:
                    self._observer.note("flags_not_refreshed", error=type(error).__name__)
                self._failing = True
                return
            self._failing = False
            body = snapshot.to_json().encode()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            self._published = Published(snapshot, body, etag, asked_at)

    def _run(self) -> None:
        while not self._closed.is_set():
            self.refresh()
            self._read_once.set()
            self._closed.wait(self._refresh_seconds)
