"""What a verification of several tokens costs on this machine, measured at start; it reports and never decides."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter

import torch

from canary.domain.traffic import SamplingParams
from canary.engine.drafters.base import Drafter, Round
from canary.engine.forward import RowForward
from canary.engine.rows import Rows

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
def draft_seconds(
    drafter: Drafter,
    target: RowForward,
    prompt: Sequence[int],
    following: Sequence[int],
    ks: Sequence[int],
    batches: Sequence[int],
    *,
    params: SamplingParams | None = None,
    repeats: int = 3,
) -> dict[tuple[int, int], float]:
    """Time what a drafter takes for a round.

    It is driven as the loop does it: after each round a target step, untimed, whose token is none of the drafts.

    Args:
        drafter: idle; its rows are overwritten and left empty.
        target: whose rows it drafts for.
        prompt: of every row.
        following: tokens that are emitted one after the other, and again from the first.
        ks: numbers of drafts to time.
        batches: rows to time; those above the target's are left out.
        params: of every row, None for greedy ones.

    Returns:
        (rows, k) -> median seconds of one round.
    """
    told, seconds = cycle(following), {}
    room = min(len(prompt) + (repeats + 1) * len(ks) + max(ks) + 2, target.context)
    target.cache.reserve(room)
    for batch in (b for b in batches if b <= target.num_rows):
        rows = None if params is None else Rows.of([params] * batch, 1, target.device)
        keys = torch.zeros(batch, 2, dtype=torch.int64, device=target.device)
        positions = torch.ones(batch, dtype=torch.int64, device=target.device)
        found: dict[int, list[float]] = {k: [] for k in ks}
        last = next(told)
        try:
            for row in range(batch):
                target.prefill(row, prompt)
                drafter.begin(row, prompt, room)
                drafter.commit(row, [last], 0)
            for turn in range(repeats + 1):
                for k in ks:
                    start = perf_counter()
                    drafter.propose(Round((k,) * batch, rows, keys, positions)).tokens.tolist()
                    if turn:
                        found[k].append(perf_counter() - start)
                    target.step(torch.full((batch, 1), last, device=target.device))
                    last = next(told)
                    for row in range(batch):
                        target.lengths[row] += 1
                        drafter.commit(row, [last], 0)
        finally:
            for row in range(batch):
                target.lengths[row] = 0
                drafter.end(row)
        seconds |= {(batch, k): statistics.median(found[k]) for k in ks}
    return seconds


def draft_costs(drafter: Drafter, target: RowForward, k: int, *, context: int = 128) -> dict[tuple[int, int], float]:
    """`draft_seconds` in milliseconds for up to k drafts of greedy rows, over text that repeats nothing while there are words."""
    words = [at * 7 % target.vocab_size for at in range(2 * context)]
    found = draft_seconds(drafter, target, words[:context], words[context:], sorted({1, (k + 1) // 2, k}), BATCHES)
    return {point: 1e3 * seconds for point, seconds in found.items()}
