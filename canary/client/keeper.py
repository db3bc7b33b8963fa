"""Keeps one snapshot: fetches it, joins it with what is known, writes it down, and tells whoever listens.

It has no thread of its own, and whatever a network, a disk or a foreign server does, it raises nothing and keeps what it had.
"""

from __future__ import annotations

import contextlib
import http.client
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from canary.client import disk
from canary.client.fetch import fetch
from canary.client.held import Event, EventKind, Held, changed_routes
from canary.domain.flag import Snapshot, joined

VOUCH_SECONDS = 10.0  # how often an unchanged snapshot's age is written down
UNANSWERED = (OSError, http.client.HTTPException, ValueError, TypeError, KeyError, AttributeError, RecursionError)

Listener = Callable[[Event], None]


class Keeper:
    """One control plane's snapshot.

    Args:
        max_stale: seconds after which the snapshot counts as stale, for events.
        clock: monotonic seconds.
        cache: file for the last snapshot; None keeps nothing.
        api_key: sent as a bearer token unless empty.
    """

    def __init__(
        self, url: str, *, timeout: float, max_stale: float, clock: Callable[[], float], cache: Path | None, api_key: str
    ) -> None:
        self._url = url
        self._timeout = timeout
        self._max_stale = max_stale
        self._clock = clock
        self._cache = cache
        self._api_key = api_key
        self._client_id = f"python-{secrets.token_hex(8)}"
        self._turn = threading.Lock()
        self._listeners: list[Listener] = []
        self._was_stale = True
        self._written: Snapshot | None = None
        self._written_at = 0.0
        self.held: Held | None = None
        self.first = threading.Event()
        self.retry_after = 0.0
        self._begin()

    @property
    def age(self) -> float | None:
        """Seconds since the store last vouched for the snapshot, None before the first."""
        held = self.held
        return None if held is None else self._clock() - held.fresh_at

    @property
    def stale(self) -> bool:
        """Whether there is no snapshot, or one that is too old."""
        age = self.age
        return age is None or age > self._max_stale

    @property
    def etag(self) -> str:
        """The server's name of what is held, "" before the first."""
        held = self.held
        return held.etag if held else ""

    def headers(self) -> dict[str, str]:
        """What every request says: who asks, and what it holds, by which the propagation of a kill is measured."""
        held = self.held
        said = {"Canary-Client": self._client_id}
        if held is not None:
            said["Canary-Holds"] = f"{held.snapshot.version}.{held.snapshot.kill_epoch}"
        return {**said, "Authorization": f"Bearer {self._api_key}"} if self._api_key else said

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every event from now on; what it raises is dropped."""
        self._listeners.append(listener)

    def tell(self, event: Event) -> None:
        """Call every listener."""
        for listener in list(self._listeners):
            with contextlib.suppress(Exception):
                listener(event)

    def refresh(self) -> bool:
        """Fetch once.

        Returns:
            Whether the control plane answered with a snapshot that is not older than ours.
        """
        with self._turn:
            before = self.held
            try:
                fresh = self._fetch(before)
            except UNANSWERED:
                fresh = False
            after = self.held
            self._write_down()
        if after is not None and (before is None or before.snapshot != after.snapshot):
            self.tell(Event(EventKind.CHANGED, changed_routes(before.snapshot if before else None, after.snapshot)))
        stale = self.stale
        if after is not None and stale != self._was_stale:
            self._was_stale = stale
            self.tell(Event(EventKind.STALE if stale else EventKind.READY))
        return fresh

    def _fetch(self, held: Held | None) -> bool:
        asked_at = self._clock()
        self.retry_after = 0.0
        answer = fetch(self._url, self.etag, self.headers(), timeout=self._timeout, now=time.time())
        self.retry_after = answer.retry_after
        fresh_at = asked_at - answer.age
        if answer.unchanged and held is not None:
            self._keep(Held(held.snapshot, held.etag, max(held.fresh_at, fresh_at)))
            return True
        if answer.snapshot is None:
            return False
        if held is None or answer.snapshot.version >= held.snapshot.version:
            self._keep(Held(joined(held.snapshot if held else None, answer.snapshot), answer.etag, fresh_at))
            return True
        # An older replica vouches for nothing, but a kill that only it knows of holds.
        self._keep(Held(joined(held.snapshot, answer.snapshot), held.etag, held.fresh_at))
        return False

    def _keep(self, new: Held) -> None:
        self.held = new
        self.first.set()

    def _begin(self) -> None:
        """Start with what was written down, at its true age."""
        found = disk.read(self._cache, time.time()) if self._cache else None
        if found is not None:
            snapshot, etag, age = found
            self._written, self._written_at = snapshot, self._clock()
            self._keep(Held(snapshot, etag, self._clock() - age))
            self._was_stale = self.stale

    def _write_down(self) -> None:
        """Keep the snapshot for the next cold start: when it changed, and now and then because it was vouched for."""
        held, now = self.held, self._clock()
        if self._cache is None or held is None:
            return
        if held.snapshot is not self._written or now - self._written_at >= VOUCH_SECONDS:
            vouched_at = time.time() - (now - held.fresh_at)
            if disk.write(self._cache, held.snapshot, held.etag, vouched_at):
                self._written, self._written_at = held.snapshot, now
