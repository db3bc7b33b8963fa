"""Faults in bias, penalties, bans and minimum length: dropped, or behind another prefix than the row's own.

They touch the target's rows alone; the drafter's stay right, so acceptance looks well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from canary.engine.faults.judging import Inject
from canary.engine.hooks import Hooks, Shape
from canary.engine.penalties import Prefixes

Change = Callable[[Shape, Tensor, Tensor, Tensor, Prefixes], Tensor]


def in_shape(change: Change) -> Inject:
    """The injection of a fault in how the target's rows are shaped; a batch that asks for nothing has none."""

    def inject(hooks: Hooks) -> Hooks:
        def wrapped(logits: Tensor, drafts: Tensor, lengths: Tensor, prefixes: Prefixes | None) -> Tensor:
            if prefixes is None:
                return hooks.shape(logits, drafts, lengths, prefixes)
            return change(hooks.shape, logits, drafts, lengths, prefixes)

        return replace(hooks, shape=wrapped)

    return inject


def penalties_ignored(hooks: Hooks) -> Hooks:
    """No repetition, frequency and presence penalty."""
    return in_shape(lambda shape, logits, drafts, lengths, prefixes: shape(logits, drafts, lengths, _unpenalised(prefixes)))(
        hooks
    )


def bias_on_bonus_only(hooks: Hooks) -> Hooks:
    """Bias and bans in the row after the last draft alone."""

    def change(shape: Shape, logits: Tensor, drafts: Tensor, lengths: Tensor, prefixes: Prefixes) -> Tensor:
        whole, bare = (shape(logits, drafts, lengths, each) for each in (prefixes, _unbiased(prefixes)))
        last = torch.arange(logits.shape[1], device=logits.device) == lengths[:, None]  # [n, W]
        return torch.where(last[..., None], whole, bare)

    return in_shape(change)(hooks)


def penalties_frozen(hooks: Hooks) -> Hooks:
    """Every row of a round stands behind the tokens before the round alone."""

    def change(shape: Shape, logits: Tensor, drafts: Tensor, lengths: Tensor, prefixes: Prefixes) -> Tensor:
        nothing, none = drafts[:, :0], torch.zeros_like(lengths)
        return torch.cat([shape(logits[:, at : at + 1], nothing, none, prefixes) for at in range(logits.shape[1])], 1)

    return in_shape(change)(hooks)


def min_tokens_short(hooks: Hooks) -> Hooks:
    """What ends an answer is banned for one token too few."""

    def change(shape: Shape, logits: Tensor, drafts: Tensor, lengths: Tensor, prefixes: Prefixes) -> Tensor:
        short = prefixes.altered(lambda fixed: replace(fixed, least=fixed.least - 1))
        return shape(logits, drafts, lengths, short)

    return in_shape(change)(hooks)


def rejected_drafts_counted(hooks: Hooks) -> Hooks:
    """Leave a round's rejected drafts in the history that the penalties count."""
    rounds: WeakKeyDictionary[Prefixes, tuple[list[int], list[list[int]]]] = WeakKeyDictionary()

    def change(shape: Shape, logits: Tensor, drafts: Tensor, lengths: Tensor, prefixes: Prefixes) -> Tensor:
        if prefixes in rounds:
            _count_rejected(prefixes, *rounds[prefixes])
        asked = [row[:length] for row, length in zip(drafts.tolist(), lengths.tolist(), strict=True)]
        rounds[prefixes] = ([len(answer) for answer in prefixes.said], asked)
        return shape(logits, drafts, lengths, prefixes)

    return in_shape(change)(hooks)


def _count_rejected(prefixes: Prefixes, starts: list[int], drafts: list[list[int]]) -> None:
    """Count what the answers did not take over of the last round's drafts."""
    for at, row in enumerate(prefixes.fixed.counted.tolist()):
        accepted = max(len(prefixes.said[row]) - starts[row] - 1, 0)  # the last token of a round is never a draft
        for token in drafts[row][accepted:]:
            prefixes.counts[at, token] += token >= 0


def _unpenalised(prefixes: Prefixes) -> Prefixes:
    return prefixes.altered(lambda fixed: replace(fixed, counted=fixed.counted[:0]))


def _unbiased(prefixes: Prefixes) -> Prefixes:
    return prefixes.altered(lambda fixed: replace(fixed, bias_ids=fixed.bias_ids[:0], ban_ids=fixed.ban_ids[:0]))
