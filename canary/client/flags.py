"""The client itself: flags in memory, kept fresh by daemon threads.

`resolve` never blocks, never raises, and answers `baseline` in every doubt; nothing but the threads touches network or disk.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from canary.client.held import Event, EventKind
from canary.client.keeper import Keeper, Listener
from canary.client.kill_file import WATCH_SECONDS, KillFile
from canary.client.stream import Stream
from canary.domain.evaluation import Evaluation, baseline, evaluate, route_of
from canary.domain.flag import DISABLED, MAX_STALE_SECONDS, UNKNOWN, Resolution, Snapshot, resolve
from canary.domain.kills import ALL

MAX_BACKOFF_SECONDS = 30.0
JITTER = 0.2
SPREAD_SECONDS = 0.1  # so that a thousand clients do not answer one event in the same millisecond
STREAMING_POLL_SECONDS = 10.0


class FlagClient:
    """The flags of one control plane, pushed and polled in the background.

    Args:
        base_url: where the API listens, e.g. `http://127.0.0.1:8700`.
        poll_seconds: time between polls while the event stream is down, with 20 % jitter; failures back off to 30 s. While it is
            up, every 10 s are enough.
        max_stale: seconds without a fresh snapshot after which canary weights fall to `baseline` with reason UNKNOWN and a full
            route does what its policy says; a kill stays a kill. Default: what each route's policy says. The shorter one holds.
        timeout: seconds for one poll.
        clock: monotonic seconds.
        start: False leaves polling to `refresh`.
        stream: whether to follow the event stream.
        cache: file for the last snapshot, used at a cold start. Default: CANARY_FLAG_CACHE, else none.
        kill_file: file that kills the routes it names, or all with `*`. Default: CANARY_KILL_FILE, else none.
        api_key: sent as a bearer token. Default: CANARY_API_KEY, else none.
    """

    def __init__(
        self,
        base_url: str,
        poll_seconds: float = 1.0,
        max_stale: float | None = None,
        *,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        start: bool = True,
        stream: bool = True,
        cache: Path | str | None = None,
        kill_file: Path | str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._url = base_url.rstrip("/")
        self._poll_seconds = poll_seconds
        self._cap = float("inf") if max_stale is None else max_stale
        self._max_stale = MAX_STALE_SECONDS if max_stale is None else max_stale
        self._timeout = timeout
        self._clock = clock
        self._closed, self._wake = threading.Event(), threading.Event()
        self._streaming = False
        self._keeper = Keeper(
            self._url,
            timeout=timeout,
            max_stale=self._max_stale,
            clock=clock,
            cache=_path(cache, "CANARY_FLAG_CACHE"),
            api_key=os.environ.get("CANARY_API_KEY", "") if api_key is None else api_key,
        )
        chosen = _path(kill_file, "CANARY_KILL_FILE")
        self._kill_file = KillFile(chosen) if chosen else None
        self._local: frozenset[str] = frozenset()
        self._looking = threading.Lock()
        self._look_at_kill_file()
        self._threads: list[threading.Thread] = []
        self._stream = self._new_stream() if start and stream else None
        if start:
            self._start()

    def resolve(self, route: str, unit: str | None = None, request: Mapping[str, object] | None = None) -> Resolution:
        """The variant for one unit, from memory.

        Args:
            unit: what is bucketed, e.g. a session or user id; needed only between 0 and 100 %.
            request: its `endpoint`, `temperature` and `stream`; needed only where the route's policy leaves requests out.
        """
        try:
            local = self._local
            if local and (route in local or ALL in local):
                return DISABLED
            held = self._keeper.held
            if held is None:
                return UNKNOWN
            return resolve(held.snapshot, route, unit, request, age=self._clock() - held.fresh_at, max_stale=self._cap)
        except Exception:  # whatever is wrong with a unit or a flag, the request goes to the baseline
            return UNKNOWN

    def evaluate(self, key: str, unit: str | None = None, request: Mapping[str, object] | None = None) -> Evaluation:
        """One flag key (`specdec.ROUTE`, `specdec-config.ROUTE`) with value and metadata, as the API would answer; from memory.

        Args:
            unit, request: as for `resolve`.
        """
        try:
            route, local, held = route_of(key), self._local, self._keeper.held
            if route is not None and (route in local or ALL in local):
                return baseline(key, "DISABLED", {"kill_reason": "kill_file: named in the gateway's kill file"})
            if route is not None and held is None:
                return baseline(key, metadata={"stale": True})
            age = 0.0 if held is None else self._clock() - held.fresh_at
            return evaluate(held.snapshot if held else None, key, unit, request, age=age, max_stale=self._cap)
        except Exception:
            return baseline(str(key), metadata={"failed": True})

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot, None before the first."""
        held = self._keeper.held
        return held.snapshot if held else None

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the store last vouched for the snapshot, None before the first."""
        return self._keeper.age

    @property
    def stale(self) -> bool:
        """Whether there is no snapshot, or one older than `max_stale` (60 s where that is left to the policies)."""
        return self._keeper.stale

    @property
    def streaming(self) -> bool:
        """Whether the event stream is up."""
        return self._streaming

    @property
    def killed_here(self) -> frozenset[str]:
        """What the local kill file kills; `*` is every route."""
        return self._local

    def listen(self, listener: Listener) -> None:
        """Call `listener` from a thread of ours with every event from now on; what it raises is dropped."""
        self._keeper.listen(listener)

    def wait_ready(self, timeout: float) -> bool:
        """Wait for the first snapshot; for start-up, never for a request."""
        return self._keeper.first.wait(timeout)

    def refresh(self) -> bool:
        """Poll once, now.

        Returns:
            Whether the control plane answered with a snapshot that is not older than ours.
        """
        self._look_at_kill_file()
        return self._keeper.refresh()

    def close(self) -> None:
        """Stop polling; the last snapshot keeps resolving until it is stale."""
        self._closed.set()
        self._wake.set()
        if self._stream is not None:
            self._stream.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(self._timeout + 1)

    def __enter__(self) -> FlagClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> None:
        self._threads.append(threading.Thread(target=self._run, name="canary-flags", daemon=True))
        if self._kill_file is not None:
            self._threads.append(threading.Thread(target=self._watch, name="canary-kill-file", daemon=True))
        for thread in self._threads:
            thread.start()
        if self._stream is not None:
            self._stream.start()

    def _new_stream(self) -> Stream:
        def connected(up: bool) -> None:
            self._streaming = up
            self._wake.set()

        keeper = self._keeper
        return Stream(self._url, keeper.headers, lambda: keeper.etag, self._wake.set, connected, timeout=self._timeout)

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            self._wake.clear()
            before = self.snapshot
            failures = 0 if self.refresh() else failures + 1
            if before is not None and before != self.snapshot:
                self._keeper.refresh()  # says at once what is in use now: a kill's propagation is measured by it
            woken = self._wake.wait(self._pause(failures))
            if woken and not self._closed.is_set():
                # An event may ask for a look before its time, but not before the time that a shedding server asked for.
                spread = random.uniform(0, SPREAD_SECONDS)
                self._closed.wait(max(spread, self._keeper.retry_after * random.uniform(1, 1 + JITTER)))

    def _pause(self, failures: int) -> float:
        """Seconds until the next poll: with jitter, backing off after failures, and never sooner than the server asked for."""
        usual = self._poll_seconds
        if self._streaming:
            usual = max(usual, min(STREAMING_POLL_SECONDS, self._max_stale / 4))
        wait = self._poll_seconds * 2 ** min(failures, 10) if failures else usual
        wait = min(wait, max(usual, MAX_BACKOFF_SECONDS)) * random.uniform(1 - JITTER, 1 + JITTER)
        return max(wait, self._keeper.retry_after * random.uniform(1, 1 + JITTER))

    def _watch(self) -> None:
        while not self._closed.wait(WATCH_SECONDS):
            self._look_at_kill_file()

    def _look_at_kill_file(self) -> None:
        file = self._kill_file
        if file is None:
            return
        with self._looking:  # a poll looks too, and the older of two looks must not have the last word
            file.look(time.time())
            turned, self._local = file.killed ^ self._local, file.killed
        if turned:
            self._keeper.tell(Event(EventKind.CHANGED, tuple(sorted(turned))))


def _path(given: Path | str | None, variable: str) -> Path | None:
    chosen = given if given is not None else os.environ.get(variable)
    return Path(chosen) if chosen else None
