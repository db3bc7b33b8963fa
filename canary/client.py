"""What a gateway imports: the flags in memory, kept fresh by a daemon thread, resolved without waiting for anything.

Standard library and `canary.domain` only. `resolve` never blocks, never raises, and answers `baseline` in every doubt.
"""

from __future__ import annotations

import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from canary.domain.flag import BUCKETS, Resolution, Snapshot, resolve

SNAPSHOT_PATH = "/api/v1/flags/snapshot"
MAX_BACKOFF_SECONDS = 30.0
MAX_SNAPSHOT_BYTES = 16 * 1024 * 1024
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class _Held:
    """A snapshot, its ETag, and the monotonic moment at which the store last vouched for it."""

    snapshot: Snapshot
    etag: str
    fresh_at: float


class FlagClient:
    """The flags of one control plane, polled in the background.

    Args:
        base_url: where the API listens, e.g. `http://127.0.0.1:8700`.
        poll_seconds: time between polls, with 20 % jitter; failures back off to 30 s.
        max_stale: seconds without a fresh snapshot after which canary weights fall to `baseline` with reason UNKNOWN; a full
            route keeps the candidate and a kill stays a kill.
        timeout: seconds for one poll.
        clock: monotonic seconds.
        start: False leaves polling to `refresh`.
    """

    def __init__(
        self,
        base_url: str,
        poll_seconds: float = 1.0,
        max_stale: float = 60.0,
        *,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        start: bool = True,
    ) -> None:
        self._url = base_url.rstrip("/") + SNAPSHOT_PATH
        self._poll_seconds = poll_seconds
        self._max_stale = max_stale
        self._timeout = timeout
        self._clock = clock
        self._held: _Held | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._first = threading.Event()
        self._thread: threading.Thread | None = None
        if start:
            self._thread = threading.Thread(target=self._run, name="canary-flags", daemon=True)
            self._thread.start()

    def resolve(self, route: str, unit: str | None = None) -> Resolution:
        """The variant for one unit, from memory.

        Args:
            unit: what is bucketed, e.g. a session or user id; needed only between 0 and 100 %.
        """
        held = self._held
        if held is None:
            return resolve(None, route, unit)
        if self._clock() - held.fresh_at > self._max_stale:
            flag = held.snapshot.flags.get(route)
            if flag is not None and not flag.killed and 0 < flag.weight < BUCKETS:
                return Resolution("baseline", "UNKNOWN")
        try:
            return resolve(held.snapshot, route, unit)
        except UnicodeError:
            return Resolution("baseline", "UNKNOWN")

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot, None before the first."""
        held = self._held
        return held.snapshot if held else None

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the store last vouched for the snapshot, None before the first."""
        held = self._held
        return self._clock() - held.fresh_at if held else None

    def wait_ready(self, timeout: float) -> bool:
        """Wait for the first snapshot; for start-up, never for a request."""
        return self._first.wait(timeout)

    def refresh(self) -> bool:
        """Poll once, now.

        Returns:
            Whether the control plane answered with a snapshot that is not older than ours.
        """
        with self._lock:
            try:
                return self._poll()
            except Exception:  # whatever a network or a foreign server does, the poller lives and the snapshot ages
                return False

    def close(self) -> None:
        """Stop polling; the last snapshot keeps resolving until it is stale."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._timeout + 1)

    def __enter__(self) -> FlagClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            failures = 0 if self.refresh() else failures + 1
            wait = min(self._poll_seconds * 2 ** min(failures, 10), max(self._poll_seconds, MAX_BACKOFF_SECONDS))
            self._closed.wait(wait * random.uniform(1 - JITTER, 1 + JITTER))

    def _poll(self) -> bool:
        held = self._held
        request = urllib.request.Request(self._url, headers={"Accept": "application/json"})
        if held is not None:
            request.add_header("If-None-Match", held.etag)
        asked_at = self._clock()
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                text = answer.read(MAX_SNAPSHOT_BYTES).decode()
                etag, age = answer.headers.get("ETag", ""), _age(answer.headers.get("Age"))
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 304 or held is None:
                    return False
                fresh_at = asked_at - _age(error.headers.get("Age"))
                self._keep(_Held(held.snapshot, held.etag, max(held.fresh_at, fresh_at)))
                return True
        snapshot = _checked(Snapshot.from_json(text, issued_at=time.time() - age))
        if held is not None and snapshot.version < held.snapshot.version:
            return False
        self._keep(_Held(snapshot, etag, asked_at - age))
        return True

    def _keep(self, new: _Held) -> None:
        self._held = new
        self._first.set()


def _checked(snapshot: Snapshot) -> Snapshot:
    """The snapshot, if `resolve` can work with all of it.

    Raises:
        ValueError: a field has another type or range.
    """
    if type(snapshot.version) is not int:
        raise ValueError("version is not an integer")
    for flag in snapshot.flags.values():
        legal = type(flag.weight) is int and 0 <= flag.weight <= BUCKETS
        if not legal or not isinstance(flag.salt, str) or type(flag.killed) is not bool:
            raise ValueError("a flag is malformed")
    return snapshot


def _age(header: str | None) -> float:
    """The answer's `Age` in seconds: how long ago the store vouched for it."""
    return max(0.0, float(header or 0))
