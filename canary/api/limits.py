"""How much of the flags' endpoints one client may use; in memory, bounded, and wrong only in the client's favour."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_CLIENTS = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What is fair.

    Args:
        rate: evaluations a second of one client address; 0 limits nothing.
        burst: evaluations at once.
        max_body: bytes of one request.
        max_streams: open event streams of all clients.
    """

    rate: float = 5_000.0
    burst: float = 10_000.0
    max_body: int = 64 * 1024
    max_streams: int = 1_000


class Buckets:
    """One token bucket per client address; the address that was quiet longest is forgotten first, with a full bucket."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float], max_clients: int = MAX_CLIENTS) -> None:
        self._rate = rate
        self._burst = max(1.0, burst)
        self._clock = clock
        self._max_clients = max_clients
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> int:
        """Take a token: 0 if there was one, else whole seconds until there is."""
        if self._rate <= 0:
            return 0
        now = self._clock()
        left, at = self._left.get(client, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        granted = left >= 1.0
        self._left[client] = (left - 1.0 if granted else left, now)
        self._left.move_to_end(client)
        if len(self._left) > self._max_clients:
            self._left.popitem(last=False)
        return 0 if granted else max(1, math.ceil((1.0 - left) / self._rate))
