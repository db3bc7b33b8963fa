"""Drafts by a smaller language model with a row cache of its own.

Every sampled draft comes with the very probabilities it was drawn from; a draft model that speaks another vocabulary is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from canary.domain.errors import ModelError
from canary.domain.pairs import DrafterKind
from canary.engine import sampling, streams
from canary.engine.drafters.base import Proposal, Round
from canary.engine.forward import RowForward
from canary.engine.sampling import Draw
from canary.engine.streams import Uniforms

_FIELD = "subject.drafter.model"
_REMEDY = "Use a draft model that was made for this target."


class DraftModelDrafter:
    """A draft model.

    Args:
        model: the draft model; it may live on another device than the target.
        num_rows: rows of the loop.
        draw, uniforms: `sampling.draw` and `streams.uniforms`, or a drill's faulty ones.
    """

    kind = DrafterKind.DENSE

    def __init__(
        self, model: PreTrainedModel, num_rows: int, draw: Draw = sampling.draw, uniforms: Uniforms = streams.uniforms
    ) -> None:
        self._draw_from, self._uniforms = draw, uniforms
        self._forward = RowForward(model, num_rows, where=_FIELD)
        self._ids: list[list[int]] = [[] for _ in range(num_rows)]

    @property
    def rows(self) -> RowForward:
        """The draft model's own loop."""
        return self._forward

    def begin(self, row: int, token_ids: Sequence[int], max_length: int) -> None:
        self._forward.cache.reserve(max_length)
        self._forward.prefill(row, token_ids)
        self._ids[row] = list(token_ids)

    def propose(self, asked: Round) -> Proposal:
        width = max(asked.limits)
        if width == 0:
            return Proposal(asked.keys.new_zeros(len(asked.limits), 0), asked.limits)
        num_rows, lengths, asked = len(asked.limits), self._forward.lengths, asked.to(self._forward.device)
        logits = self._catch_up(num_rows)  # [n, V]
        tokens, probs = [], []
        for i in range(width):
            drawn, row_probs = self._draw(logits, asked, i)
            tokens.append(drawn)
            if row_probs is not None:
                probs.append(row_probs)
            if i + 1 < width:
                # A row that could not be drawn from fails at its verification; the model must not see its negative id.
                logits = self._forward.step(drawn[:, None].clamp_min(0))[:, 0]
                for row in range(num_rows):
                    lengths[row] += 1
        return Proposal(torch.stack(tokens, 1), asked.limits, torch.stack(probs, 1) if probs else None)

    def commit(self, row: int, token_ids: Sequence[int], num_accepted: int) -> None:
        # The cached drafts that were accepted are text now; the last draft of a full acceptance was never fed, so
        # `_catch_up` feeds it together with the token that followed.
        lengths = self._forward.lengths
        lengths[row] = min(lengths[row], len(self._ids[row]) + num_accepted)
        self._ids[row].extend(token_ids)

    def move(self, source: int, target: int) -> None:
        self._forward.cache.move(source, target)
        self._ids[target], self._ids[source] = self._ids[source], []

    def end(self, row: int) -> None:
        self._forward.cache.clear(row)
        self._ids[row] = []

    def _catch_up(self, num_rows: int) -> torch.Tensor:
        """Feed what each row has not seen yet; logits after each row's last token, [n, V]."""
        lengths, device = self._forward.lengths, self._forward.device
        missing = [self._ids[row][lengths[row] :] for row in range(num_rows)]
        width = max(len(m) for m in missing)
        fed = torch.tensor([m + [0] * (width - len(m)) for m in missing], device=device)  # [n, W]
        logits = self._forward.step(fed)  # [n, W, V]
        for row in range(num_rows):
            lengths[row] = len(self._ids[row])
        last = torch.tensor([len(m) - 1 for m in missing], device=device)
        return logits[torch.arange(num_rows, device=device), last]

    def _draw(self, logits: torch.Tensor, asked: Round, i: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The i-th draft of every row, [n], and its rows, [n, V]; a batch of greedy rows needs no probabilities."""
        if asked.rows is None:
            return logits.float().argmax(-1), None
        probs = sampling.process(logits, asked.rows)
        uniforms = self._uniforms(asked.keys, streams.Stream.DRAFT, (asked.positions + i)[:, None])[:, 0]
        drawn = self._draw_from(probs, uniforms)
        return drawn.tokens, drawn.probs


def require_same_words(
    target: tuple[PreTrainedModel, PreTrainedTokenizerBase], draft: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> None:
    """Refuse a draft model that does not speak the target's vocabulary.

    Raises:
        ModelError: names what differs: vocabulary, special ids, chat template, width of the head, or context.
    """
    (target_model, target_words), (draft_model, draft_words) = target, draft
    ours, theirs = target_words.get_vocab(), draft_words.get_vocab()
    if ours != theirs:
        odd = sorted({w for w in ours.keys() | theirs.keys() if ours.get(w) != theirs.get(w)})
        raise _mismatch("tokenizer vocabulary", f"{len(odd)} entries, the first is {odd[0]!r}")
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
        if getattr(target_words, name) != getattr(draft_words, name):
            raise _mismatch(name, f"{getattr(target_words, name)} and {getattr(draft_words, name)}")
    if target_words.chat_template != draft_words.chat_template:
        raise _mismatch("chat template", "the two texts are not equal")
    sizes = target_model.config.vocab_size, draft_model.config.vocab_size
    if sizes[0] != sizes[1]:
        raise _mismatch("vocab_size of the head", f"{sizes[0]} and {sizes[1]}")
    contexts = target_model.config.max_position_embeddings, draft_model.config.max_position_embeddings
    if contexts[1] < contexts[0]:
        raise _mismatch("max_position_embeddings", f"{contexts[0]} and only {contexts[1]}")


def _mismatch(what: str, how: str) -> ModelError:
    return ModelError(f"the draft model's {what} differs from the target's ({how})", where=_FIELD, remedy=_REMEDY)
