"""Faults in the log-probabilities that a client is told; the tokens are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from canary.engine.faults.judging import Inject
from canary.engine.hooks import Hooks
from canary.engine.logprobs import Judgement, Tell


def in_table(change: Callable[[Tell, Judgement], Tensor]) -> Inject:
    """The injection of a fault in what is told."""

    def inject(hooks: Hooks) -> Hooks:
        return replace(hooks, logprobs=lambda judged: change(hooks.logprobs, judged))

    return inject


def zero(tell: Tell, judged: Judgement) -> Tensor:
    """Take the emitted tokens' log-probabilities of rows that are certain already."""
    told = tell(judged)
    return torch.cat((torch.zeros_like(told[..., :2]), told[..., 2:]), -1)


def of_next_row(tell: Tell, judged: Judgement) -> Tensor:
    """Read every row but a round's last from the position after it."""

    def shift(rows: Tensor) -> Tensor:
        return torch.cat((rows[:, 1:], rows[:, -1:]), 1)

    probs = None if judged.probs is None else shift(judged.probs)
    return tell(replace(judged, raw=shift(judged.raw), shaped=shift(judged.shaped), probs=probs))
