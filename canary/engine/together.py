"""What the requests of one step have in common; it is built anew whenever one of them leaves, and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from canary.engine.forward import RowForward
from canary.engine.logprobs import Telling
from canary.engine.penalties import Prefixes
from canary.engine.requests import Running
from canary.engine.rows import Rows
from canary.engine.transfer import to_device


@dataclass(slots=True)
class Batch:
    """What a set of rows has in common until one of them leaves.

    Args:
        keys: [n, 2] int64.
        prefixes: None where no request's parameters look at its own tokens.
        telling: None where no request asked for log-probabilities.
    """

    running: Sequence[Running]
    keys: torch.Tensor
    greedy: bool
    prefixes: Prefixes | None
    telling: Telling | None
    _rows: dict[int, Rows] = field(default_factory=dict)

    @classmethod
    def of(cls, running: Sequence[Running], target: RowForward) -> Batch:
        keys = to_device([r.job.key for r in running], target.device)
        said = [r.token_ids for r in running]
        prefixes = Prefixes.of([r.shaping for r in running], said, target.vocab_size, target.device)
        telling = Telling.of([r.job.params for r in running], target.device)
        return cls(running, keys, all(r.job.greedy for r in running), prefixes, telling)

    def rows(self, width: int) -> Rows:
        """Sampling parameters of `width` rows per request."""
        if width not in self._rows:
            self._rows[width] = Rows.of([r.job.params for r in self.running], width, self.keys.device)
        return self._rows[width]

    def positions(self, width: int, spacing: int) -> torch.Tensor:
        """What the next `width` tokens of each answer draw with, [n, width] int64; their index where rounds are not spaced."""
        emitted = to_device([len(r.token_ids) for r in self.running], self.keys.device)
        return emitted[:, None] * spacing + torch.arange(width, device=self.keys.device)
