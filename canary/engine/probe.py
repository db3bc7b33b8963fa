"""What a verification of several tokens costs on this machine, measured at start; it reports and never decides."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from canary.engine.drafters.base import Drafter, Round
from canary.engine.forward import RowForward

WIDTHS = (1, 2, 3, 5, 9)
BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class WidthCost:
    """One point of the verify-cost curve.

    Args:
        batch: rows of the step.
        width: tokens per row, drafts plus one.
        milliseconds: median of one target step.
        ratio: of width 1 at the same batch.
    """

    batch: int
    width: int
    milliseconds: float
    ratio: float


@torch.inference_mode()
def verify_costs(
    target: RowForward, *, widths: Sequence[int] = WIDTHS, batches: Sequence[int] = BATCHES, context: int = 128, repeats: int = 7
) -> tuple[WidthCost, ...]:
    """Time target steps over rows that already hold some tokens.

    Args:
        target: idle; its rows are overwritten and left empty.
        widths: widths to time, the first must be 1.
        batches: batch sizes; those above the target's rows are left out.
        context: cached tokens per row.
        repeats: timed rounds; within a round every width is run once, so that a drifting machine shifts all alike.
    """
    target.cache.reserve(context + max(widths))
    costs = []
    for batch in (b for b in batches if b <= target.num_rows):
        target.lengths[:batch] = [context] * batch
        seconds: dict[int, list[float]] = {width: [] for width in widths}
        for turn in range(repeats + 1):
            for width in widths:
                tokens = torch.zeros(batch, width, dtype=torch.int64, device=target.device)
                start = perf_counter()
                target.step(tokens)[:, :, 0].tolist()
                if turn:
                    seconds[width].append(perf_counter() - start)
        medians = {width: statistics.median(seconds[width]) for width in widths}
        costs += [WidthCost(batch, w, 1e3 * medians[w], medians[w] / medians[widths[0]]) for w in widths]
        target.lengths[:batch] = [0] * batch
    return tuple(costs)


@torch.inference_mode()
def draft_costs(
    drafter: Drafter, target: RowForward, k: int, *, batches: Sequence[int] = BATCHES, context: int = 128, repeats: int = 3
) -> dict[tuple[int, int], float]:
    """Time what a drafter takes for a round, over rows whose text is all different.

    Args:
        drafter: idle; its rows are overwritten and left empty.
        target: whose rows it drafts for; some drafters read its cache.
        k: most tokens that it will be asked for.

    Returns:
        (batch, k) -> median milliseconds of one round.
    """
    asked = sorted({1, (k + 1) // 2, k})
    room = context + k + 2
    target.cache.reserve(room)
    words = torch.arange(context, dtype=torch.int64) * 7 % target.vocab_size
    costs = {}
    for batch in (b for b in batches if b <= target.num_rows):
        for row in range(batch):
            ids = ((words + row) % target.vocab_size).tolist()
            target.prefill(row, ids)
            drafter.begin(row, ids, room)
            drafter.commit(row, [int(words[0])], 0)
        keys = torch.zeros(batch, 2, dtype=torch.int64, device=target.device)
        positions = torch.ones(batch, dtype=torch.int64, device=target.device)
        for count in asked:
            seconds = []
            for turn in range(repeats + 1):
                start = perf_counter()
                drafter.propose(Round((count,) * batch, None, keys, positions)).tokens.tolist()
                if turn:
                    seconds.append(perf_counter() - start)
                for row in range(batch):
                    drafter.commit(row, [int(words[turn % context])], 0)
            costs[batch, count] = 1e3 * statistics.median(seconds)
        for row in range(batch):
            drafter.end(row)
        target.lengths[:batch] = [0] * batch
    return costs
