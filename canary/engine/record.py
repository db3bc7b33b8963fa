"""What the loop keeps of a traced request: the target's raw rows of its emitted tokens, and its trace columns.

Only rows of tokens that were really emitted are kept, and only until they have been compared with the reference's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from canary.domain.pairs import Columns, Scheme
from canary.engine import trace
from canary.engine.drafters.base import Proposal
from canary.engine.rows import Rows
from canary.engine.sampling import INVALID, unfiltered
from canary.engine.transfer import to_device, to_host
from canary.engine.verify import Verified


@dataclass(slots=True)
class Record:
    """One traced request.

    Args:
        logits: raw target rows of the emitted tokens, step by step, [tokens, V] each, in the model's dtype.
        processed: the rows that they were drawn from, likewise; empty for greedy requests.
        previous: processed row of the last emitted token, [V]; None before the first.
        parts: trace columns, step by step.
    """

    logits: list[torch.Tensor] = field(default_factory=list)
    processed: list[torch.Tensor] = field(default_factory=list)
    previous: torch.Tensor | None = None
    parts: list[dict[str, torch.Tensor]] = field(default_factory=list)

    def rows(self) -> torch.Tensor:
        """All kept raw rows, [tokens, V]."""
        return torch.cat(self.logits)

    def processed_rows(self) -> torch.Tensor | None:
        """All kept processed rows, [tokens, V]; None where not every token has one."""
        return torch.cat(self.processed) if len(self.processed) == len(self.logits) else None

    def columns(self) -> Columns:
        """The whole trace, packed."""
        return trace.pack({name: torch.cat([part[name] for part in self.parts]) for name in self.parts[0]})

    def clear(self) -> None:
        """Let the rows go."""
        self.logits, self.processed, self.previous, self.parts = [], [], None, []


@dataclass(frozen=True, slots=True)
class Line:
    """One row's outcome of a round, on the host; `valid` is False where a row was not a distribution."""

    token_ids: list[int]
    num_drafted: int
    num_accepted: int
    valid: bool


@dataclass(frozen=True, slots=True)
class Draws:
    """What a round of n rows was judged with, besides the drafts.

    Args:
        probs: processed target rows, [n, W, V].
        rows: the sampling parameters of those n * W rows.
        accept, pit: uniforms, [n, W - 1] and [n, W].
        scheme: how the round was judged.
    """

    probs: torch.Tensor
    rows: Rows
    accept: torch.Tensor
    pit: torch.Tensor
    scheme: Scheme = Scheme.TOKEN


def _batched(items: Sequence[Any], size: int) -> list[Any]:
    """Pieces of `size` items each."""
    return [items[start : start + size] for start in range(0, len(items), size)]


@dataclass(frozen=True, slots=True)
class Step:
    """One judged round of n rows.

    Args:
        logits: raw target rows, [n, W, V].
        proposal: what was judged, W - 1 columns.
        lengths: of the drafts, [n] int64.
        draws: None where an all-greedy round was judged by its logits alone.
        logprobs: see `logprobs.table`; None where no request asked.
    """

    logits: torch.Tensor
    proposal: Proposal
    lengths: torch.Tensor
    verified: Verified
    draws: Draws | None = None
    logprobs: torch.Tensor | None = None

    def read(self) -> tuple[list[Line], list[Any]]:
        """The round's outcome and its log-probabilities as `Telling.give` takes them, in one copy from the device."""
        accepted, following = self.verified.num_accepted[:, None], self.verified.next_token[:, None]
        table = torch.cat([accepted, following, self.proposal.tokens], 1)  # [n, 2 + W - 1] int64
        told: list[Any] = []
        if self.logprobs is None:
            outcome = to_host(table)
        else:  # as one kind of number: no count or token is too large for a float of 64 bits
            numbers = to_host(torch.cat([table.to(torch.float64).flatten(), self.logprobs.flatten()]))
            outcome = [[int(x) for x in line] for line in _batched(numbers[: table.numel()], table.shape[1])]
            positions = _batched(numbers[table.numel() :], self.logprobs.shape[2])
            told = _batched(positions, self.logprobs.shape[1])
        lines = [
            Line([*drafts[:count], token], drafted, count, token != INVALID)
            for (count, token, *drafts), drafted in zip(outcome, self.proposal.lengths, strict=True)
        ]
        return lines, told

    def keep_rows(self, records: Sequence[Record], counts: Sequence[int]) -> None:
        """Keep the rows of each request's first `counts` columns: the tokens that it emitted."""
        for i, (record, count) in enumerate(zip(records, counts, strict=True)):
            if count:
                record.logits.append(self.logits[i, :count].clone())
                if self.draws is not None:
                    record.processed.append(self.draws.probs[i, :count].clone())

    def trace(self, records: Sequence[Record], counts: Sequence[int], *, want_tv: bool) -> None:
        """Add the round's trace columns to each request that emitted something."""
        draws, device = self.draws, self.lengths.device
        if draws is None or not any(counts):
            return
        nothing = torch.zeros_like(draws.probs[0, 0])
        emitted = trace.gather_emitted(
            self.verified,
            draws.probs,
            self.proposal.tokens,
            self.lengths,
            self.proposal.probs,
            draws.accept if self.verified.accept_uniforms is None else self.verified.accept_uniforms,
            num_emitted=to_device(counts, device),
            greedy=draws.rows.greedy.view(len(counts), -1)[:, 0],
            pit_uniforms=draws.pit,
            previous_probs=torch.stack([nothing if r.previous is None else r.previous for r in records]),
            has_previous=to_device([r.previous is not None for r in records], device, torch.bool),
            scheme=draws.scheme,
        )
        raw = torch.cat([record.logits[-1] for record, count in zip(records, counts, strict=True) if count])  # [N, V]
        columns = trace.trace_rows(replace(emitted, unfiltered_probs=unfiltered(raw, draws.rows)), want_tv=want_tv)
        start = 0
        for i, (record, count) in enumerate(zip(records, counts, strict=True)):
            if count:
                record.parts.append({name: values[start : start + count] for name, values in columns.items()})
                record.previous = draws.probs[i, count - 1].clone()
                start += count
