"""A small gateway that resolves the demo's flags through the real client and counts where its traffic goes."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from dataclasses import dataclass, field

from canary.client import FlagClient

UNITS_PER_BEAT = 200
BEAT_SECONDS = 0.5


@dataclass
class Traffic:
    """What one route's units got in the newest beat, and since the start."""

    now: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Share of the newest beat's units on the candidate."""
        return self.now["candidate"] / max(1, self.now.total())


class Gateway:
    """Resolves units of every route on a thread of its own; nothing here waits for Canary."""

    def __init__(self, base_url: str, routes: list[str]) -> None:
        self.traffic = {route: Traffic() for route in routes}
        self._client = FlagClient(base_url, poll_seconds=BEAT_SECONDS)
        self._units = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="gateway", daemon=True)

    def __enter__(self) -> Gateway:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        self._client.close()

    def _serve(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            units = [f"user-{next(self._units)}" for _ in range(UNITS_PER_BEAT)]
            for route, traffic in self.traffic.items():
                traffic.now = Counter(self._client.resolve(route, unit).variant for unit in units)
                traffic.total += traffic.now
