"""Drafts by the target's own first layers, its last norm and its head: no second model and no memory of its own.

What those layers have cached of a text is what drafting with them needs, so the drafts run over the target's own rows, past their
ends; the next target step writes over them. A row's length is never left changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from canary.domain.pairs import DrafterKind
from canary.engine.drafters.base import Proposal, Round
from canary.engine.drafters.drawing import Drawing, nothing
from canary.engine.forward import RowForward
from canary.engine.transfer import to_device

_CLEAN = Drawing()


class EarlyExitDrafter:
    """The target, left early.

    Args:
        target: the loop's own rows.
        exit_layer: layers to run, 1 to the target's number; with all of them the draft is the target.
        drawing: how drafts are drawn.

    Raises:
        ModelError: the target has fewer layers, or does not keep them in a plain list.
    """

    kind = DrafterKind.DENSE

    def __init__(self, target: RowForward, exit_layer: int, drawing: Drawing = _CLEAN) -> None:
        self._drawing = drawing
        self._forward = target.first_layers(exit_layer)
        self._pending = [0] * target.num_rows

    def begin(self, row: int, token_ids: Sequence[int], max_length: int) -> None:
        """The target's prefill has cached the prompt."""

    def propose(self, asked: Round) -> Proposal:
        width, num_rows, lengths = max(asked.limits), len(asked.limits), self._forward.lengths
        if width == 0:
            return nothing(asked)
        before = lengths[:num_rows]
        fed = to_device(self._pending[:num_rows], self._forward.device)  # [n]
        drafts = self._drawing.start(asked)
        try:
            for i in range(width):
                logits = self._forward.step(fed[:, None])[:, 0]  # [n, V]
                # A row that could not be drawn from fails at its verification; the model must not see its negative id.
                fed = drafts.draw(logits).clamp_min(0)
                lengths[:num_rows] = [length + i + 1 for length in before]
        finally:
            lengths[:num_rows] = before
        return drafts.proposal()

    def commit(self, row: int, token_ids: Sequence[int], num_accepted: int) -> None:
        if token_ids:
            self._pending[row] = token_ids[-1]

    def move(self, source: int, target: int) -> None:
        self._pending[target] = self._pending[source]

    def end(self, row: int) -> None:
        self._pending[row] = 0
