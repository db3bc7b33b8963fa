"""The flag snapshot in memory: what the store last said, with every kill that is known here; whoever reads it waits for nothing.

With the store away the last snapshot stays and its age grows, so that readers can judge it themselves; kills go on all the same.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from canary.api.kept_flags import KeptFlags
from canary.domain.flag import Snapshot, joined
from canary.domain.kills import overlaid, unvouched
from canary.flow.loop import Loop
from canary.flow.ports import Observer, Store
from canary.kills.board import KillBoard, Listener

REFRESH_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Published:
    """A snapshot as it is served.

    Args:
        body: the canonical JSON.
        etag: strong, quoted, over the body.
        read_at: monotonic moment at which the store vouched for it; kills that came since are in it all the same.
    """

    snapshot: Snapshot
    body: bytes
    etag: str
    read_at: float


class FlagCache:
    """The newest snapshot of a store, with the board's kills.

    Args:
        refresh_seconds: time between looks at the store; the bound on how late a kill that went to the store alone is seen.
        clock, monotonic: seconds since the epoch, and seconds that never step back.
        board: the kills that are known here; by default one in memory.
        home: the folder in which the last snapshot is kept for a start without the store; None keeps nothing.
    """

    def __init__(
        self,
        store: Store,
        observer: Observer,
        *,
        refresh_seconds: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        board: KillBoard | None = None,
        home: Path | None = None,
    ) -> None:
        self._store = store
        self._observer = observer
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._monotonic = monotonic
        self.board = board or KillBoard(observer, clock=clock)
        self._kept = None if home is None else KeptFlags(home, observer)
        self._base: Snapshot | None = None
        self._read_at = 0.0
        self._cursor = 0
        self._settled: frozenset[str] = frozenset()
        self._published: Published | None = None
        self._listeners: list[Listener] = []
        self._failing: set[str] = set()
        self._refreshing = threading.Lock()
        self._publishing = threading.Lock()
        self._read_once = threading.Event()
        self._loop = Loop("canary-flag-cache", self._step, observer)
        self._begin()
        self.board.listen(self._publish)

    def start(self) -> None:
        """Start refreshing; a second call does nothing."""
        self._loop.start()

    def close(self) -> None:
        """Stop refreshing; what is served stays, with a growing age."""
        self._loop.close()

    def wait_first(self, seconds: float) -> bool:
        """Wait for the first look at the store, whether or not it answered; for start-up, never for a request."""
        return self._read_once.wait(seconds)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener`, on any thread, after every change of `published`; returns what ends it. It must be quick."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    @property
    def published(self) -> Published | None:
        """What is served, None before there is anything to say."""
        return self._published

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the store vouched for what is served."""
        published = self._published
        return None if published is None else max(0.0, self._monotonic() - published.read_at)

    @property
    def settled(self) -> frozenset[str]:
        """Ids of the orders that the store has, as far as it was read and the board knows them."""
        return self._settled

    @property
    def healthy(self) -> bool:
        """Whether the last look at the store succeeded, not long ago."""
        fresh = self._monotonic() - self._read_at < 4 * self._refresh_seconds + 1
        return fresh and not self._failing and self._read_once.is_set()

    def refresh(self) -> None:
        """Read the store once, now; a failure leaves the last snapshot and is noted once per outage."""
        # Held over reading and keeping, so that an older read can never replace a newer one.
        with self._refreshing:
            asked_at = self._monotonic()
            try:
                with self._store.transaction() as tx:
                    snapshot, news = tx.flags.snapshot(self._clock()), tx.kills.after(self._cursor)
            except Exception as error:
                self._note("flags_not_refreshed", error=type(error).__name__)
                return
            self._failing.discard("flags_not_refreshed")
            if self._base is not None and snapshot.version < self._base.version:
                self._note("flags_went_back", version=snapshot.version, known=self._base.version)
                return
            self._failing.discard("flags_went_back")
            # The board first: what the store's flags were revived after must be known before they are served.
            self.board.join(order for _, order in news)
            self._cursor = max((place for place, _ in news), default=self._cursor)
            with self._publishing:
                self._settled = self._settled.union(order.order_id for _, order in news) & self.board.known.orders.keys()
                self._base, self._read_at = joined(self._base, snapshot), asked_at
                self.board.rise(self._base.kill_epoch)
            self._publish()
            if self._kept is not None:
                self._kept.keep(self._base, self._settled)

    def _begin(self) -> None:
        """Serve what was kept on disk, until the store answers: kills as they were, canaries at the baseline."""
        found = None if self._kept is None else self._kept.read()
        if found is not None:
            self._base, self._settled = unvouched(found.snapshot), found.settled
            self._read_at = self._monotonic() - max(0.0, self._clock() - found.snapshot.issued_at)
            self.board.rise(found.snapshot.kill_epoch)
        self._publish()

    def _publish(self) -> None:
        with self._publishing:
            base, read_at = self._base, self._read_at
            known, named = self.board.known, self.board.named
            if base is None:
                if not known.orders and not named:
                    return
                # A version below every real one: it tells of kills and of nothing else.
                base, read_at = Snapshot(0, 0.0, {}), self._monotonic() - self._clock()
            snapshot = overlaid(base, self._settled, known, named)
            body = snapshot.to_json().encode()
            before = self._published
            if before is not None and before.body == body:
                self._published = replace(before, read_at=read_at)
                return
            self._published = Published(snapshot, body, f'"{hashlib.sha256(body).hexdigest()[:32]}"', read_at)
        for listener in list(self._listeners):
            listener()

    def _note(self, event: str, **facts: object) -> None:
        """Say it once per outage."""
        if event not in self._failing:
            self._observer.note(event, **facts)
        self._failing.add(event)

    def _step(self) -> float:
        try:
            self.refresh()
        finally:
            self._read_once.set()
        return self._refresh_seconds
