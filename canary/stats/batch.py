"""Several pairs whose per-token columns are read together, since numpy takes as long for one short answer as for eight.

It reads and never judges; a column that is missing or of the wrong size raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import numpy as np

from canary.domain.pairs import Columns, Pair
from canary.stats.bets import Array, decoded, sampled_trace
from canary.stats.part import Context, Vector
from canary.stats.ragged import Ragged

T = TypeVar("T")


class Table:
    """The columns of several generations, one after the other.

    Args:
        blocks: one per generation.

    Attributes:
        tokens: the groups that they form.
    """

    def __init__(self, blocks: Sequence[Columns]) -> None:
        self.blocks = tuple(blocks)
        self.tokens = Ragged([block.num_tokens for block in blocks])
        self._columns: dict[str, Array] = {}

    def column(self, name: str) -> Array:
        """One column, `[tokens]`, or `[tokens, width]` where it holds several values per token; not to be written to.

        Raises:
            UsageError: no such column, a block lacks it, or its bytes do not fit.
        """
        if name not in self._columns:
            self._columns[name] = decoded(self.blocks, name)
        return self._columns[name]


class Batch:
    """Pairs of one attempt.

    Args:
        context: of the attempt.

    Attributes:
        sampled: of the pairs that speak about sampling, the places in `pairs`.
        traces: their candidates' traces.
    """

    def __init__(self, context: Context, pairs: Sequence[Pair]) -> None:
        self.context, self.pairs = context, tuple(pairs)
        found = [(at, trace) for at, pair in enumerate(self.pairs) if (trace := sampled_trace(pair)) is not None]
        self.sampled = [at for at, _ in found]
        self.traces = Table([trace for _, trace in found])
        self._made: dict[str, object] = {}

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What several parts work out of the same columns, made by the first that asks."""
        if name not in self._made:
            self._made[name] = make()
        return cast(T, self._made[name])

    def spread(self, values: Vector) -> Vector:
        """Numbers of the sampled pairs as numbers of all, 0 for the others: [sampled, width] to [pairs, width]."""
        if len(self.sampled) == len(self.pairs):
            return values
        found = np.zeros((len(self.pairs), values.shape[1]))
        found[self.sampled] = values
        return found


class Together(ABC):
    """A part that works several pairs out together; its `increments` of one are those of a batch of one."""

    @abstractmethod
    def increments_many(self, batch: Batch) -> Vector:
        """What each pair adds, `[pairs, width]`; a pair's numbers do not depend on the others, to the last bit."""

    def increments(self, context: Context, pair: Pair) -> Vector:
        """See `part.Part`."""
        found: Vector = self.increments_many(Batch(context, [pair]))[0]
        return found
