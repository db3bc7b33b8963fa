"""Faults in what a drafter draws: token and reported row do not belong together, which is the commonest bug in the field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from canary.engine.faults.judging import Inject
from canary.engine.sampling import INVALID, Draw, Drawn

TOP_K = 5


def in_draw(change: Callable[[Draw, Tensor, Tensor], Drawn]) -> Inject:
    """The injection of a fault in the drafter's `draw`."""
    return lambda hooks: replace(hooks, draw=lambda probs, uniforms: change(hooks.draw, probs, uniforms))


def greedy_draft(draw: Draw, probs: Tensor, uniforms: Tensor) -> Drawn:
    """Draw the most probable token and still report the whole row as what it was drawn from."""
    tokens, reported = draw(probs, uniforms)
    return Drawn(torch.where(tokens == INVALID, INVALID, probs.argmax(-1)), reported)


def top_k_draft(draw: Draw, probs: Tensor, uniforms: Tensor) -> Drawn:
    """Draw from the five likeliest tokens, report the whole row."""
    kept = probs.topk(min(TOP_K, probs.shape[-1]), -1)
    return Drawn(draw(torch.zeros_like(probs).scatter_(-1, kept.indices, kept.values), uniforms).tokens, probs)


def tempered_draft(temperature: float, *, reported: bool) -> Inject:
    """Draw at another temperature; the row that is reported is that of the draw only where it says so."""

    def change(draw: Draw, probs: Tensor, uniforms: Tensor) -> Drawn:
        other = probs ** (1 / temperature)
        other = other / other.sum(-1, keepdim=True)
        return Drawn(draw(other, uniforms).tokens, other if reported else probs)

    return in_draw(change)
