"""The Protocol between the loop and whatever proposes tokens.

A drafter answers for one request per row and keeps nothing of a request after its end: requests never help each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from canary.domain.pairs import DrafterKind
from canary.engine.penalties import Prefixes
from canary.engine.rows import Rows


@dataclass(frozen=True, slots=True)
class Round:
    """What the loop asks for in one step, for its first n rows.

    Args:
        limits: most tokens that each row may draft, at most k.
        rows: sampling parameters of each row, None when all rows are greedy.
        keys: random keys, [n, 2] int64.
        positions: what each row's first draft draws with, [n] int64; the next ones with the numbers after it.
        prefixes: what the rows' bias, penalties and bans look back at; None where no row has any.
    """

    limits: tuple[int, ...]
    rows: Rows | None
    keys: torch.Tensor
    positions: torch.Tensor
    prefixes: Prefixes | None = None

    def limited(self, limits: tuple[int, ...]) -> Round:
        """The same round with fewer tokens asked for."""
        return replace(self, limits=limits)


@dataclass(frozen=True, slots=True)
class Proposal:
    """One round of drafts.

    Args:
        tokens: [n, w] int64, w the longest draft of the round; beyond a row's length any token.
        lengths: draft tokens of each row.
        probs: the very rows that the tokens were drawn from, [n, w, V]; None where the drafts are one-hot.
        grades: how far the drafter itself trusts each row's draft (an n-gram: length of its match, 0 without one); None where it
            does not say. Only adaptive k reads it.
    """

    tokens: torch.Tensor
    lengths: tuple[int, ...]
    probs: torch.Tensor | None = None
    grades: tuple[int, ...] | None = None


class Drafter(Protocol):
    """Proposes tokens; `kind` is fixed for a drafter, whatever the requests ask for."""

    kind: DrafterKind

    def begin(self, row: int, token_ids: Sequence[int], max_length: int) -> None:
        """A request starts in a row: its prompt, and the most tokens it can reach."""

    def propose(self, asked: Round) -> Proposal:
        """Draft for the first rows; a row may get fewer tokens than asked for, or none."""

    def commit(self, row: int, token_ids: Sequence[int], num_accepted: int) -> None:
        """What the last step emitted in a row; the first `num_accepted` tokens are its accepted drafts."""

    def move(self, source: int, target: int) -> None:
        """Row `source` lives in row `target` from now on, whose request has ended."""

    def end(self, row: int) -> None:
        """The row's request has ended."""
