"""Drafts by heads on the target's last hidden state, one per position ahead: the whole block at once, without a second model.

Medusa-style (Cai et al., 2401.10774), as a chain: the i-th head gives the i-th draft whatever the drafts before it are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from canary.domain.pairs import DrafterKind
from canary.engine.drafters.base import Proposal, Round
from canary.engine.drafters.drawing import Drawing, nothing
from canary.engine.forward import RowForward

_CLEAN = Drawing()


class ResBlock(nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., H] -> [..., H]
        return x + nn.functional.silu(self.linear(x))


def make_heads(num_heads: int, num_layers: int, hidden_size: int, vocab_size: int) -> nn.ModuleList:
    """Heads with the parameter names of the published layout: `0.0.linear.weight`, `0.0.linear.bias`, `0.1.weight`."""
    return nn.ModuleList(
        nn.Sequential(*(ResBlock(hidden_size) for _ in range(num_layers)), nn.Linear(hidden_size, vocab_size, bias=False))
        for _ in range(num_heads)
    )


class HeadsDrafter:
    """Heads on the target.

    Args:
        target: the loop's own rows; from now on they hand over their hidden states.
        heads: at least k of them, each [n, H] to [n, V].
        drawing: how drafts are drawn.
    """

    kind = DrafterKind.DENSE

    def __init__(self, target: RowForward, heads: nn.ModuleList, drawing: Drawing = _CLEAN) -> None:
        target.keep_hidden()
        self._target, self._heads, self._drawing = target, heads, drawing
        self._hidden: list[torch.Tensor | None] = [None] * target.num_rows  # [H] each

    def begin(self, row: int, token_ids: Sequence[int], max_length: int) -> None:
        """The prompt's hidden state comes with the commit of the first token."""

    @torch.inference_mode()
    def propose(self, asked: Round) -> Proposal:
        width, num_rows = max(asked.limits), len(asked.limits)
        if width == 0:
            return nothing(asked)
        hidden = torch.stack([self._known(row) for row in range(num_rows)])  # [n, H]
        drafts = self._drawing.start(asked)
        for head in self._heads[:width]:
            drafts.draw(head(hidden))
        return drafts.proposal()

    def commit(self, row: int, token_ids: Sequence[int], num_accepted: int) -> None:
        # The state that the last emitted token was drawn from; that token is known by now, so head 0 speaks of the next one.
        self._hidden[row] = self._target.hidden(row, len(token_ids) - 1)

    def move(self, source: int, target: int) -> None:
        self._hidden[target], self._hidden[source] = self._hidden[source], None

    def end(self, row: int) -> None:
        self._hidden[row] = None

    def _known(self, row: int) -> torch.Tensor:
        hidden = self._hidden[row]
        assert hidden is not None, f"row {row} has no request"
        return hidden
