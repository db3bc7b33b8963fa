"""Every outcome of one round under block verification, through the shipped verifier, trace and bets, each with its probability.

Uniforms enter the bets as polynomials between breakpoints, so that three Gauss nodes per cell integrate them exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from canary.domain.pairs import Scheme
from canary.engine.hooks import METHODS
from canary.engine.trace import gather_emitted, trace_rows
from canary.engine.verify_block import block_rule
from canary.stats.ragged import Ragged
from tests.engine.worlds import Prefix, Rows

# Target rows, draft rows, drafts, accept uniforms, next uniform, probability.
Case = tuple[Tensor, Tensor, Prefix, Sequence[float], float, float]
NODES, WEIGHTS = (np.array([0.5 - np.sqrt(0.15), 0.5, 0.5 + np.sqrt(0.15)]), np.array([5, 8, 5]) / 18)


class Table64:
    """Columns as the trace made them, in float64, with the interface of `stats.batch.Table`."""

    def __init__(self, columns: Mapping[str, np.ndarray], lengths: Sequence[int]) -> None:
        self._columns, self.tokens = columns, Ragged(lengths)

    def column(self, name: str) -> np.ndarray:
        return self._columns[name]


@dataclass(frozen=True)
class Outcomes:
    """All outcomes of a round at one V of the randomised PITs.

    Args:
        table: their traces, one group per outcome.
        chances: [outcomes], summing to 1.
        emitted: [outcomes], what each emits; all but its last token are accepted drafts.
        drafts: [outcomes] likewise.
    """

    table: Table64
    chances: np.ndarray
    emitted: list[Prefix]
    drafts: list[Prefix]


def outcomes(target: Rows, draft: Rows, k: int, v: float, traced: Scheme = Scheme.BLOCK) -> Outcomes:
    """Every draft, every cell of every uniform, every next token.

    Args:
        v: of every PIT of the round.
        traced: how the trace believes that the drafts were judged.
    """
    rows: list[Case] = []
    vocab = len(target(()))
    for drafts in itertools.product(range(vocab), repeat=k):
        p = torch.stack([target(drafts[:i]) for i in range(k + 1)])
        q = torch.stack([draft(drafts[:i]) for i in range(k)])
        chance = float(np.prod([float(q[i, d]) for i, d in enumerate(drafts)]))
        if not chance:
            continue
        thresholds = block_rule(p[None], torch.tensor([drafts]), torch.tensor([k]), q[None]).thresholds[0].tolist()
        for cells in itertools.product(*(list(_cells(h)) for h in thresholds)):
            weight = chance * float(np.prod([w for _, w in cells]))
            for at, width in _next(p, q, drafts, [u for u, _ in cells]):
                rows.append((p, q, drafts, [u for u, _ in cells], at, weight * width))
    return _traced(rows, k, v, traced)


def _cells(threshold: float) -> list[tuple[float, float]]:
    """(point, weight) of a uniform whose verdict changes at the threshold."""
    ends = [0.0, *([threshold] if 0 < threshold < 1 else []), 1.0]
    return [
        (low + (high - low) * node, (high - low) * weight)
        for low, high in itertools.pairwise(ends)
        for node, weight in zip(NODES, WEIGHTS, strict=True)
    ]


def _next(p: Tensor, q: Tensor, drafts: Prefix, uniforms: Sequence[float]) -> list[tuple[float, float]]:
    """(uniform in the middle of a token's share, share) of what is drawn after the accepted drafts."""
    rule = block_rule(p[None], torch.tensor([drafts]), torch.tensor([len(drafts)]), q[None])
    count = max([i + 1 for i, u in enumerate(uniforms) if u < float(rule.thresholds[0, i])], default=0)
    row = p[count] if count == len(drafts) else (float(rule.weights[0, count]) * p[count] - q[count]).clamp_min(0)
    row = row / row.sum() if row.sum() > 0 else p[count]
    ends = np.concatenate([[0.0], row.cumsum(0).numpy()])
    return [((low + high) / 2, high - low) for low, high in itertools.pairwise(ends) if high > low]


def _traced(rows: list[Case], k: int, v: float, scheme: Scheme) -> Outcomes:
    target, draft = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
    drafts, lengths = torch.tensor([row[2] for row in rows]), torch.full((len(rows),), k)
    accept = torch.tensor([row[3] for row in rows], dtype=torch.float64)
    following = torch.tensor([row[4] for row in rows], dtype=torch.float64)[:, None].expand(-1, k + 1)
    judged = (target, drafts, lengths, draft, accept)
    found = METHODS[Scheme.BLOCK].verify(*judged, following)
    emitted = gather_emitted(
        found,
        *judged,
        num_emitted=found.num_accepted + 1,
        greedy=torch.zeros(len(rows), dtype=torch.bool),
        pit_uniforms=torch.full((len(rows), k + 1), v, dtype=torch.float64),
        previous_probs=target[:, 0],
        has_previous=torch.ones(len(rows), dtype=torch.bool),
        scheme=scheme,
    )
    columns = {name: values.numpy() for name, values in trace_rows(emitted, want_tv=False).items()}
    counts = (found.num_accepted + 1).tolist()
    tokens = [(*row[2][: count - 1], last) for row, count, last in zip(rows, counts, found.next_token.tolist(), strict=True)]
    return Outcomes(Table64(columns, counts), np.array([row[5] for row in rows]), tokens, [row[2] for row in rows])
