"""Sampling parameters of a batch, row by row, as tensors; it says what is asked for and never applies it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from canary.domain.traffic import SamplingParams


@dataclass(frozen=True, slots=True)
class Rows:
    """Sampling parameters per row, with what the host knows about them so that no kernel has to ask.

    Args:
        temperature: [N] float64, 0 is greedy.
        top_k: [N] int64, 0 is off.
        top_p: [N] float64, 1 is off.
        greedy: [N] bool.
        top_k_rows, top_p_rows: [F] int64, the sampled rows with such a filter.
        max_top_k: largest top_k of the rows.
        any_greedy, all_greedy: over the rows.
        plain: every row has temperature 1 and no filter.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    greedy: Tensor
    top_k_rows: Tensor
    top_p_rows: Tensor
    max_top_k: int
    any_greedy: bool
    all_greedy: bool
    plain: bool

    def to(self, device: torch.device) -> Rows:
        """The same rows on another device."""
        if self.temperature.device == device:
            return self
        return replace(self, **{f.name: v.to(device) for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)})

    @classmethod
    def of(cls, params: Sequence[SamplingParams], repeat: int = 1, device: torch.device | str | None = None) -> Rows:
        """Rows of a batch.

        Args:
            params: one per request.
            repeat: consecutive rows of each request (verify rows: k + 1).
        """
        each = [p for p in params for _ in range(repeat)]
        temperature = [float(p.temperature) for p in each]
        greedy = [t == 0 for t in temperature]
        top_k_rows = [i for i, p in enumerate(each) if p.top_k > 0 and not greedy[i]]
        top_p_rows = [i for i, p in enumerate(each) if p.top_p < 1 and not greedy[i]]
        return cls(
            temperature=torch.tensor(temperature, dtype=torch.float64, device=device),
            top_k=torch.tensor([p.top_k for p in each], dtype=torch.int64, device=device),
            top_p=torch.tensor([float(p.top_p) for p in each], dtype=torch.float64, device=device),
            greedy=torch.tensor(greedy, dtype=torch.bool, device=device),
            top_k_rows=torch.tensor(top_k_rows, dtype=torch.int64, device=device),
            top_p_rows=torch.tensor(top_p_rows, dtype=torch.int64, device=device),
            max_top_k=max((each[i].top_k for i in top_k_rows), default=0),
            any_greedy=any(greedy),
            all_greedy=all(greedy),
            plain=all(t == 1 for t in temperature) and not top_k_rows and not top_p_rows,
        )
