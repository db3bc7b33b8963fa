"""Faults in the rows themselves: parameters dropped, numerical noise, rows that are no distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from canary.engine.faults.judging import Inject
from canary.engine.hooks import Hooks, Logits
from canary.engine.rows import Rows

NAN_ONE_IN = 31
NOISE_ONE_IN = 8


def with_rows(other: Callable[[Rows], Rows]) -> Inject:
    """Process verify rows under other parameters."""
    return lambda hooks: replace(hooks, process=lambda logits, rows, lengths: hooks.process(logits, other(rows), lengths))


def bonus_parameters_ignored(hooks: Hooks) -> Hooks:
    """Process the row after the last draft without temperature and filters."""

    def process(logits: Tensor, rows: Rows, lengths: Tensor) -> Tensor:
        bare = hooks.process(logits, without_temperature(without_filters(rows)), lengths)
        bonus = (torch.arange(logits.shape[1], device=logits.device) == lengths[:, None]) & (lengths > 0)[:, None]  # [n, W]
        return torch.where(bonus[..., None], bare, hooks.process(logits, rows, lengths))

    return replace(hooks, process=process)


def without_temperature(rows: Rows) -> Rows:
    """Every sampled row at temperature 1."""
    return replace(rows, temperature=torch.ones_like(rows.temperature), plain=not rows.filtered and not rows.any_greedy)


def without_filters(rows: Rows) -> Rows:
    """No top-k, top-p, min-p and typical-p."""
    none = rows.top_k_rows[:0]
    plain = not rows.any_greedy and bool((rows.temperature == 1).all())
    return replace(rows, top_k_rows=none, top_p_rows=none, min_p_rows=none, typical_p_rows=none, max_top_k=0, plain=plain)


def without_min_p(rows: Rows) -> Rows:
    """No min-p."""
    bare = replace(rows, min_p_rows=rows.min_p_rows[:0])
    return replace(bare, plain=not bare.filtered and not bare.any_greedy and bool((bare.temperature == 1).all()))


def changed(change: Logits) -> Inject:
    """Change the raw verify rows that the target gave."""
    return lambda hooks: replace(hooks, logits=lambda logits: change(hooks.logits(logits)))


def ulp_noise(logits: Tensor) -> Tensor:
    """Move one logit in eight by one unit in the last place, up or down."""
    code = _code(logits)
    goal = torch.where((code // NOISE_ONE_IN) % 2 == 0, torch.inf, -torch.inf).to(logits.dtype)
    return torch.where(code % NOISE_ONE_IN == 0, torch.nextafter(logits, goal), logits)


def bfloat16_rows(logits: Tensor) -> Tensor:
    """Round to bfloat16."""
    return logits.to(torch.bfloat16).to(logits.dtype)


def nan_rows(logits: Tensor) -> Tensor:
    """One row in about thirty, chosen by its own numbers, is not a number."""
    chosen = _code(logits[..., :1]) % NAN_ONE_IN == 0
    return torch.where(chosen, torch.nan, logits)


def _code(logits: Tensor) -> Tensor:
    """A number per logit that looks random and is the same on a retry, int64 of at least 0."""
    return (logits.to(torch.float64) * 1e6).abs().to(torch.int64) * 2654435761 % 1_000_003
