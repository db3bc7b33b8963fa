"""The rows of both arms compared with the reference, of the pairs in which both were.

What could not be compared counts as infinitely far; a column that is missing sets its pair aside.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from canary.domain.errors import UsageError
from canary.domain.pairs import Pair
from canary.domain.traffic import Stratum
from canary.stats.batch import Batch, Table
from canary.stats.part import Vector


def is_scored(pair: Pair) -> bool:
    """Whether both arms answered and were compared with the reference."""
    rows = (pair.baseline.rows, pair.candidate.rows)
    return pair.baseline.error is None and pair.candidate.error is None and all(r is not None and r.num_tokens > 0 for r in rows)


class Scored:
    """The scored pairs of a batch.

    Attributes:
        places: of them in the batch.
    """

    def __init__(self, batch: Batch) -> None:
        self._pairs = batch.pairs
        self.places = [at for at, pair in enumerate(batch.pairs) if is_scored(pair)]

    @classmethod
    def of(cls, batch: Batch) -> Scored:
        """The batch's, made once."""
        return batch.once("scored", lambda: cls(batch))

    @cached_property
    def candidate(self) -> Table:
        return Table([rows for at in self.places if (rows := self._pairs[at].candidate.rows)])

    @cached_property
    def baseline(self) -> Table:
        return Table([rows for at in self.places if (rows := self._pairs[at].baseline.rows)])

    @property
    def arms(self) -> tuple[Table, Table]:
        """Candidate and baseline."""
        return self.candidate, self.baseline


def distances(table: Table, name: str) -> Vector:
    """One column of `ROW_COLUMNS`, at least 0, [tokens]; what could not be compared (nan) counts as infinitely far.

    Raises:
        ValueError: the column is missing or does not fit the text, so that the pair has to be set aside.
    """
    try:
        values = table.column(name)
    except UsageError as error:
        raise ValueError(f"rows: {error}") from error
    return np.where(np.isnan(values), np.inf, np.maximum(values, 0.0))


def by_stratum(batch: Batch, names: int) -> tuple[Vector, Vector]:
    """Where the increments of each pair's own stratum go.

    Args:
        names: increments of one stratum; those of the strata lie one after the other.

    Returns:
        (zeros, [pairs, strata * names]; first column of each pair's stratum, [pairs]).
    """
    order = list(Stratum)
    first = np.array([order.index(pair.stratum) * names for pair in batch.pairs])
    return np.zeros((len(batch.pairs), len(order) * names)), first
