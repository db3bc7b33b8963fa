"""Recorded histories: whole attempts with rows, timings, greedy requests, failed arms and tombstones, as a store would hold them.

Everything that a fold can meet is in one, so that a test of the fold is a test of all parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from canary.domain.pairs import Arm, Columns, DecodeStats, DrafterKind, Generation, Pair, Timing
from canary.domain.traffic import Stratum
from canary.stats.battery import Battery, pack
from canary.stats.part import Context
from tests.stats.experiments import attempts
from tests.stats.make import rows
from tests.stats.world import LENGTH, Engine, Item, World


@dataclass(frozen=True)
class History:
    """One attempt as stored.

    Args:
        context: calibrated.
        pairs: in ordinal order; one that is set aside or lost has an item without increments.
    """

    context: Context
    pairs: list[Pair]
    items: list[Item]

    @property
    def battery(self) -> Battery:
        return Battery(self.context)


def record(requests: int, seed: int = 0, *, kind: DrafterKind = DrafterKind.DENSE, fault: str | None = None) -> History:
    """Simulate an attempt: a tenth of the requests is greedy, and a few fail or get lost."""
    rng = np.random.default_rng(seed)
    context, plain = next(attempts(Engine(World.make(), kind, fault), 1, requests, seed))
    pairs = [_furnish(pair, rng) for pair in plain]
    return History(context, pairs, stored(context, pairs, lost={7, 30} & set(range(requests))))


def stored(context: Context, pairs: Sequence[Pair], lost: set[int]) -> list[Item]:
    """What the fold reads of the pairs; tombstones at the `lost` ordinals."""
    before, after = Battery(replace(context, calibration=None)), Battery(context)
    found = []
    for pair in pairs:
        increments = None if pair.ordinal in lost else (after if pair.calibration_hash else before).increments(pair)
        packed = None if increments is None else pack(increments)
        found.append(Item(pair.ordinal, packed, pair.calibration_hash if packed else "", float(pair.ordinal)))
    return found


def _furnish(pair: Pair, rng: np.random.Generator) -> Pair:
    """Scored rows in both arms, timings, and now and then a greedy request or a failed arm."""
    plain = DecodeStats(0, (0,) * LENGTH, (0,) * LENGTH)
    answer = replace(pair.baseline, token_ids=pair.candidate.token_ids, stats=plain)  # which tokens it has is never asked
    baseline, candidate = _scored(answer, rng), _scored(pair.candidate, rng)
    if rng.random() < 0.05:
        candidate = replace(candidate, error="out of memory", finish_reason="error", token_ids=(), trace=None, rows=None)
    stratum = Stratum.GREEDY if pair.ordinal >= 20 and rng.random() < 0.1 else Stratum.SAMPLED
    slow, fast = (Timing(0.1, 0.1 + 0.02 * 95 * float(rng.lognormal(mean, 0.2)), 96) for mean in (0.0, -0.3))
    return replace(pair, stratum=stratum, baseline=baseline, candidate=candidate, baseline_timing=slow, candidate_timing=fast)


def _scored(generation: Generation, rng: np.random.Generator) -> Generation:
    tokens = len(generation.token_ids)
    far = rng.random(tokens) < 0.002
    return replace(
        generation,
        rows=rows(np.where(far, 0.3, 0.02 * rng.random(tokens)).tolist(), np.where(far, 1.0, 0.0).tolist()),
    )


def long(pairs: Sequence[Pair], length: int) -> list[Pair]:
    """The pairs with answers of another length: their own tokens again and again, for measuring time alone."""
    return [pair if length == LENGTH else _stretched(pair, length) for pair in pairs]


def _stretched(pair: Pair, length: int) -> Pair:
    times = -(-length // LENGTH)
    generations = {}
    for generation in (pair.baseline, pair.candidate):
        blocks = {name: getattr(generation, name) for name in ("trace", "rows")}
        more = {
            name: block and Columns(block.num_tokens * times, {column: data * times for column, data in block.data.items()})
            for name, block in blocks.items()
        }
        stats = generation.stats
        stats = replace(stats, drafted=stats.drafted * times, accepted=stats.accepted * times, num_cut=stats.num_cut * times)
        tokens = generation.token_ids * times
        generations[generation.arm] = replace(generation, token_ids=tokens, stats=stats, **more)
    return replace(pair, baseline=generations[Arm.BASELINE], candidate=generations[Arm.CANDIDATE])
