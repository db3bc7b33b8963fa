"""How fast a kill reached the clients, as they said themselves; derived from counts and moments, never estimated."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

MAX_NAMED = 20  # missed clients that a drill's report names


@dataclass(frozen=True, slots=True)
class Propagation:
    """How fast a kill reached the clients, by their own word.

    Args:
        connected: clients that were heard of shortly before.
        acknowledged: those that said they hold it, and `seconds` how long after the order at the latest, rising.
        missed: those that did not, by name.
    """

    connected: int
    acknowledged: int
    seconds: tuple[float, ...]
    missed: tuple[str, ...]

    @classmethod
    def of(cls, connected: Collection[str], reached: Mapping[str, float]) -> Propagation:
        """From the clients that were there, and the seconds of those that acknowledged."""
        missed = tuple(sorted(set(connected) - set(reached)))
        return cls(len({*connected, *reached}), len(reached), tuple(sorted(reached.values())), missed)

    def quantile(self, share: float) -> float | None:
        """Seconds within which that share of the acknowledgements came (nearest rank); None without any."""
        if not self.seconds:
            return None
        return self.seconds[max(0, math.ceil(share * len(self.seconds)) - 1)]

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; of the missed, the first few."""
        return {
            "connected": self.connected,
            "acknowledged": self.acknowledged,
            "p50_seconds": self.quantile(0.5),
            "p99_seconds": self.quantile(0.99),
            "max_seconds": self.quantile(1.0),
            "missed": list(self.missed[:MAX_NAMED]),
        }
