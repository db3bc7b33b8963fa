"""Drafts by a smaller language model with a row cache of its own, on the target's device or on another.

Every sampled draft comes with the very probabilities it was drawn from, in the target's ids whatever the draft model's own are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from canary.domain.pairs import DrafterKind
from canary.engine.drafters.base import Proposal, Round
from canary.engine.drafters.drawing import Drawing, nothing
from canary.engine.drafters.transfers import Transfers
from canary.engine.drafters.vocabulary import SharedWords
from canary.engine.forward import RowForward

_FIELD = "subject.drafter.model"
_CLEAN = Drawing()


class DraftModelDrafter:
    """A draft model.

    Args:
        model: the draft model.
        num_rows: rows of the loop.
        drawing: how drafts are drawn.
        words: None where the draft model's ids and rows are the target's own.
        transfers: the way to the model's device; None where it is the target's.
    """

    kind = DrafterKind.DENSE

    def __init__(
        self,
        model: PreTrainedModel,
        num_rows: int,
        drawing: Drawing = _CLEAN,
        *,
        words: SharedWords | None = None,
        transfers: Transfers | None = None,
    ) -> None:
        self._drawing = drawing
        self._forward = RowForward(model, num_rows, where=_FIELD)
        device = self._forward.device
        self._words = None if words is None else words.to(device)
        self._draft_of = None if words is None else words.draft_of.tolist()
        self._transfers = transfers or Transfers(device, device)
        self._ids: list[list[int]] = [[] for _ in range(num_rows)]  # in the draft model's ids

    @property
    def rows(self) -> RowForward:
        """The draft model's own loop."""
        return self._forward

    def begin(self, row: int, token_ids: Sequence[int], max_length: int) -> None:
        self._ids[row] = self._translated(token_ids)
        self._forward.cache.reserve(max_length)
        self._forward.prefill(row, self._ids[row])

    def propose(self, asked: Round) -> Proposal:
        width = max(asked.limits)
        if width == 0:
            return nothing(asked)
        num_rows, lengths, asked = len(asked.limits), self._forward.lengths, self._transfers.asked(asked)
        logits = self._catch_up(num_rows)  # [n, V]
        drafts = self._drawing.start(asked)
        for i in range(width):
            tokens = drafts.draw(logits if self._words is None else self._words.rows(logits))  # [n]
            if i + 1 < width:
                logits = self._forward.step(self._fed(tokens)[:, None])[:, 0]
                for row in range(num_rows):
                    lengths[row] += 1
        return self._transfers.proposed(drafts.proposal())

    def commit(self, row: int, token_ids: Sequence[int], num_accepted: int) -> None:
        # The cached drafts that were accepted are text now; the last draft of a full acceptance was never fed, so
        # `_catch_up` feeds it together with the token that followed.
        lengths = self._forward.lengths
        lengths[row] = min(lengths[row], len(self._ids[row]) + num_accepted)
        self._ids[row].extend(self._translated(token_ids))

    def move(self, source: int, target: int) -> None:
        self._forward.cache.move(source, target)
        self._ids[target], self._ids[source] = self._ids[source], []

    def end(self, row: int) -> None:
        self._forward.cache.clear(row)
        self._ids[row] = []

    def _catch_up(self, num_rows: int) -> torch.Tensor:
        """Feed what each row has not seen yet; logits after each row's last token, [n, V]."""
        lengths = self._forward.lengths
        missing = [self._ids[row][lengths[row] :] for row in range(num_rows)]
        width = max(len(m) for m in missing)
        fed = self._transfers.there(torch.tensor([m + [0] * (width - len(m)) for m in missing]))  # [n, W]
        logits = self._forward.step(fed)  # [n, W, V]
        for row in range(num_rows):
            lengths[row] = len(self._ids[row])
        last = self._transfers.there(torch.tensor([len(m) - 1 for m in missing]))
        return logits[torch.arange(num_rows, device=logits.device), last]

    def _fed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Drafts in the draft model's ids, [n]."""
        # A row that could not be drawn from fails at its verification; the model must not see its negative id.
        known = tokens.clamp_min(0)
        return known if self._words is None else self._words.draft_of[known]

    def _translated(self, token_ids: Sequence[int]) -> list[int]:
        return list(token_ids) if self._draft_of is None else [self._draft_of[token] for token in token_ids]
