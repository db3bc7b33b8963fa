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
        top_k_rows, top_p_rows, min_p_rows, typical_p_rows: [F] int64, the sampled rows with such a filter.
        max_top_k: largest top_k of the rows.
        any_greedy, all_greedy: over the rows.
        plain: every row has temperature 1 and no filter.
        min_p: [N] float64, 0 is off.
        typical_p: [N] float64, 1 is off.
        shaped: a row has bias, penalties, bans or a minimum length, which `penalties` sees to.
        greedy_rows: [G] int64, the greedy rows: to index with `greedy` would make the host wait for the device.
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
    min_p: Tensor
    typical_p: Tensor
    min_p_rows: Tensor
    typical_p_rows: Tensor
    shaped: bool
    greedy_rows: Tensor

    @property
    def filtered(self) -> bool:
        """Whether a row has a filter."""
        return any(map(len, (self.top_k_rows, self.top_p_rows, self.min_p_rows, self.typical_p_rows)))

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

        def reals(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)

        def where(has: list[bool]) -> Tensor:
            chosen = [i for i, it_has in enumerate(has) if it_has and not greedy[i]]
            return torch.tensor(chosen, dtype=torch.int64, device=device)

        return cls(
            temperature=reals(temperature),
            top_k=torch.tensor([p.top_k for p in each], dtype=torch.int64, device=device),
            top_p=reals([float(p.top_p) for p in each]),
            greedy=torch.tensor(greedy, dtype=torch.bool, device=device),
            top_k_rows=where([p.top_k > 0 for p in each]),
            top_p_rows=where([p.top_p < 1 for p in each]),
            max_top_k=max((p.top_k for p in each if p.temperature != 0), default=0),
            any_greedy=any(greedy),
            all_greedy=all(greedy),
            plain=all(t == 1 and not p.filtered for t, p in zip(temperature, each, strict=True)),
            min_p=reals([float(p.min_p) for p in each]),
            typical_p=reals([float(p.typical_p) for p in each]),
            min_p_rows=where([p.min_p > 0 for p in each]),
            typical_p_rows=where([p.typical_p < 1 for p in each]),
            shaped=any(p.shaped for p in params),
            greedy_rows=torch.tensor([i for i, it_is in enumerate(greedy) if it_is], dtype=torch.int64, device=device),
        )
