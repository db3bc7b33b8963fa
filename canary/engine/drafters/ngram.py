"""Drafts by copying: what followed the most recent earlier occurrence of the last tokens of this very request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from canary.domain.pairs import DrafterKind
from canary.engine.drafters.base import Proposal, Round


@dataclass(slots=True)
class History:
    """One request's tokens, and where each n-gram was last continued.

    Args:
        max_ngram: longest n-gram that is indexed.
    """

    max_ngram: int
    token_ids: list[int] = field(default_factory=list)
    _next: dict[tuple[int, ...], int] = field(default_factory=dict)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens; every n-gram that they continue now points at its continuation."""
        ids = self.token_ids
        for token in token_ids:
            at = len(ids)
            for n in range(1, min(self.max_ngram, at) + 1):
                self._next[tuple(ids[at - n : at])] = at
            ids.append(token)

    def draft(self, limit: int) -> list[int]:
        """At most `limit` tokens that followed the longest, then most recent, match; empty without one.

        A match that reaches the end of the text goes on with its own copy, so that a repeated phrase drafts in full.
        """
        return self.graded(limit)[0]

    def graded(self, limit: int) -> tuple[list[int], int]:
        """The same with the length of the match, 0 without one."""
        ids = self.token_ids
        for n in range(min(self.max_ngram, len(ids)), 0, -1):
            start = self._next.get(tuple(ids[-n:]))
            if start is not None:
                period = len(ids) - start
                return [ids[start + i % period] for i in range(limit)], n
        return [], 0


class NgramDrafter:
    """Prompt lookup.

    Args:
        num_rows: rows of the loop.
        max_ngram: longest match that is tried first, at least 1.
    """

    kind = DrafterKind.ONE_HOT

    def __init__(self, num_rows: int, max_ngram: int) -> None:
        self._max_ngram = max_ngram
        self._rows: list[History | None] = [None] * num_rows

    def begin(self, row: int, token_ids: Sequence[int], max_length: int) -> None:
        history = History(self._max_ngram)
        history.extend(token_ids)
        self._rows[row] = history

    def propose(self, asked: Round) -> Proposal:
        found = [self._history(row).graded(limit) for row, limit in enumerate(asked.limits)]
        lengths = tuple(len(draft) for draft, _ in found)
        width = max(lengths)
        padded = [draft + [0] * (width - len(draft)) for draft, _ in found]
        # They stay on the host, so that whoever looks at them before the loop does need not wait for a device.
        tokens = torch.tensor(padded, dtype=torch.int64).view(len(found), width)
        return Proposal(tokens, lengths, grades=tuple(grade for _, grade in found))

    def commit(self, row: int, token_ids: Sequence[int], num_accepted: int) -> None:
        self._history(row).extend(token_ids)

    def move(self, source: int, target: int) -> None:
        self._rows[target], self._rows[source] = self._rows[source], None

    def end(self, row: int) -> None:
        self._rows[row] = None

    def _history(self, row: int) -> History:
        history = self._rows[row]
        assert history is not None, f"row {row} has no request"
        return history
