"""Where every part's numbers lie in what a pair stores and in the sums of an attempt.

A layout's fingerprint covers both: numbers of another layout are never added to these.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from canary.domain.traffic import Stratum
from canary.stats.part import Chained, Context, Part, Vector, Watched

STRATA = tuple(f"strata.{stratum}" for stratum in Stratum)  # the first numbers: 1 in the pair's stratum

# How the watched parts share the change detector, in twentieths where all are there. A part that holds a share w is log(1/w) nats
# late. The bank keeps the fifth that it would have of five alike, and the components, which hold nine e-processes, have as much;
# one greedy gap, one outlier or one request with shared randomness is worth many nats, so that those parts give way.
WATCH_SHARES = {"bank": 4, "components": 4, "pit": 3, "outliers": 3, "greedy": 3, "xreq": 3}


@dataclass(frozen=True, slots=True)
class Place:
    """One part's share.

    Args:
        names: of its increments; stored_names: of what a pair stores, which differ for a chained part.
        sums, stored: where they lie.
        chained: the part, where its stored values are raw.
    """

    part: Part
    names: tuple[str, ...]
    stored_names: tuple[str, ...]
    sums: slice
    stored: slice
    chained: Chained | None


class Layout:
    """All parts of a battery, in storage order.

    Attributes:
        names: of the sums; stored_names: of a pair's increments as they are stored.
    """

    def __init__(self, context: Context, parts: Sequence[Part]) -> None:
        self._context = context
        self.names: tuple[str, ...] = STRATA
        self.stored_names: tuple[str, ...] = STRATA
        self.places: list[Place] = []
        for part in parts:
            names = part.names(context)
            chained = part if isinstance(part, Chained) else None
            stored = chained.raw_names(context) if chained else names
            sums_at, stored_at = len(self.names), len(self.stored_names)
            place = Place(
                part, names, stored, slice(sums_at, sums_at + len(names)), slice(stored_at, stored_at + len(stored)), chained
            )
            self.places.append(place)
            self.names += tuple(f"{part.name}.{n}" for n in names)
            self.stored_names += tuple(f"{part.name}.{n}" for n in stored)

    @cached_property
    def fingerprint(self) -> str:
        """Of all names and of the number of watched bets."""
        return hashlib.sha256(json.dumps([self.names, self.stored_names, len(self.watch_weights)]).encode()).hexdigest()

    @cached_property
    def watched(self) -> list[tuple[Watched, slice]]:
        """Parts that the change detector watches, and where their sums lie."""
        return [(p.part, p.sums) for p in self.places if isinstance(p.part, Watched)]

    @cached_property
    def watch_weights(self) -> Vector:
        """Weight of every watched bet, [bets]: the parts that there are share by `WATCH_SHARES`."""
        total = sum(WATCH_SHARES[part.name] for part, _ in self.watched)
        weights = [part.request_weights(self._context) * (WATCH_SHARES[part.name] / total) for part, _ in self.watched]
        return np.concatenate(weights) if weights else np.zeros(0)
