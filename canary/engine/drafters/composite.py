"""Copies where the text repeats itself, asks a model where it does not: per row, in one round.

A copied draft is reported as an exact one-hot row, which is what it was drawn from, so that a mixed round is judged by the one
rule for dense rows. Which of the two drafts a row depends on its own request alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn.functional import pad

from canary.domain.pairs import DrafterKind
from canary.engine.drafters.base import Drafter, Proposal, Round
from canary.engine.transfer import to_device


class CompositeDrafter:
    """An n-gram drafter first, another one for the rows in which nothing matches.

    Args:
        copying: a one-hot drafter.
        fallback: a dense one.
        num_rows: rows of the loop.
        vocab_size: width of the target's rows, V.
    """

    kind = DrafterKind.DENSE

    def __init__(self, copying: Drafter, fallback: Drafter, num_rows: int, vocab_size: int) -> None:
        self._copying, self._fallback, self._vocab_size = copying, fallback, vocab_size
        self._by_fallback = [False] * num_rows

    def begin(self, row: int, token_ids: Sequence[int], max_length: int) -> None:
        self._copying.begin(row, token_ids, max_length)
        self._fallback.begin(row, token_ids, max_length)

    def propose(self, asked: Round) -> Proposal:
        copied = self._copying.propose(asked)
        rest = tuple(0 if copied.lengths[row] else limit for row, limit in enumerate(asked.limits))
        self._by_fallback[: len(rest)] = [limit > 0 for limit in rest]
        drafted = self._fallback.propose(replace(asked, limits=rest)) if any(rest) else None
        lengths = tuple(map(max, copied.lengths, rest)) if drafted is None else tuple(map(max, copied.lengths, drafted.lengths))
        tokens = self._merged(copied.tokens.to(asked.keys.device), None if drafted is None else drafted.tokens, max(lengths))
        probs = None if asked.rows is None else self._probs(copied, drafted, tokens)
        return Proposal(tokens, lengths, probs, copied.grades)

    def commit(self, row: int, token_ids: Sequence[int], num_accepted: int) -> None:
        self._copying.commit(row, token_ids, num_accepted)
        # What was copied is not what the fallback has cached beyond the row's text, though it be the same tokens.
        self._fallback.commit(row, token_ids, num_accepted if self._by_fallback[row] else 0)
        self._by_fallback[row] = False

    def move(self, source: int, target: int) -> None:
        self._copying.move(source, target)
        self._fallback.move(source, target)
        self._by_fallback[target], self._by_fallback[source] = self._by_fallback[source], False

    def end(self, row: int) -> None:
        self._copying.end(row)
        self._fallback.end(row)
        self._by_fallback[row] = False

    def _merged(self, copied: torch.Tensor, drafted: torch.Tensor | None, width: int) -> torch.Tensor:
        """Each row's tokens from whoever drafted it, [n, width]."""
        copied = pad(copied, (0, width - copied.shape[1]))
        if drafted is None:
            return copied
        drafted = pad(drafted.to(copied.device), (0, width - drafted.shape[1]))
        return torch.where(self._which(len(copied), copied.device)[:, None], drafted, copied)

    def _probs(self, copied: Proposal, drafted: Proposal | None, tokens: torch.Tensor) -> torch.Tensor:
        """The rows that the tokens were drawn from, [n, width, V]: one-hot where they were copied."""
        num_rows, width = tokens.shape
        dtype = torch.float32 if drafted is None or drafted.probs is None else drafted.probs.dtype
        rows = torch.zeros(num_rows, width, self._vocab_size, dtype=dtype, device=tokens.device)
        rows.scatter_(2, tokens.clamp_min(0)[..., None], 1.0)
        if drafted is not None and drafted.probs is not None:
            chosen = [row for row in range(num_rows) if self._by_fallback[row]]  # known to the host: nothing has to wait
            by_fallback = to_device(chosen, tokens.device)
            rows[by_fallback, : drafted.probs.shape[1]] = drafted.probs.to(tokens.device)[by_fallback]
        return rows

    def _which(self, num_rows: int, device: torch.device) -> torch.Tensor:
        return to_device(self._by_fallback[:num_rows], device, torch.bool)
