"""What a speculative setting is expected to cost and gain, from acceptance, measured step times and answer lengths.

It predicts and never measures; a prediction is no evidence, and no gate reads one. Times are seconds throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from canary.stats.rounds import Array, Track, walk
from canary.stats.rounds import expected_tokens as expected_tokens
from canary.stats.rounds import step_speedup as step_speedup

HYSTERESIS = 0.01  # a larger k has to be predicted faster than a smaller one by more than this share
Z = 1.959964  # two-sided 95 %

DraftCost = Callable[[int, int], float]  # rows, k -> seconds of one draft


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured seconds of a target step, by context, batch and width; linear between the points, flat beyond them.

    Args:
        points: seconds by (cached tokens per row, rows, width); each context has the same full grid of rows and widths.
    """

    points: Mapping[tuple[int, int, int], float]

    def at(self, batch: float, width: float, context: float = 0.0) -> float:
        """Seconds of one step."""
        return self._between(lambda c: self._at_context(c, batch, width), self._axis(0), context)

    def _axis(self, place: int) -> list[int]:
        return sorted({point[place] for point in self.points})

    def _at_context(self, context: int, batch: float, width: float) -> float:
        widths = self._axis(2)
        return self._between(
            lambda b: float(np.interp(width, widths, [self.points[context, b, w] for w in widths])), self._axis(1), batch
        )

    @staticmethod
    def _between(value: Callable[[int], float], axis: Sequence[int], at: float) -> float:
        return float(np.interp(at, axis, [value(a) for a in axis]))


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured for a prediction.

    Args:
        verify: of a target step.
        prefill: seconds to the first token, one per answer.
        context: cached tokens per row while decoding, on average.
        draft: of one draft by rows and k.
        draft_prefill: what the drafter adds to the prefill, one per answer.
    """

    verify: Curve
    prefill: Sequence[float]
    context: float = 0.0
    draft: DraftCost = lambda _rows, _k: 0.0
    draft_prefill: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """One setting at one concurrency.

    Args:
        tokens_per_round: emitted, one row, rounds without a draft included.
        acceptance_rate: accepted over drafted tokens, 0 where nothing was drafted.
        per_position: accepted at i over drafts.
        decode_speedup: over k = 0, prefill left out.
        speedup: over k = 0 from request to last token; `low` and `high` carry the acceptance's 95 % interval through.
    """

    k: int
    concurrency: int
    tokens_per_round: float
    acceptance_rate: float
    per_position: tuple[float, ...]
    decode_speedup: float
    speedup: float
    low: float
    high: float


def predict(tracks: Sequence[Track], k: int, concurrency: int, costs: Costs) -> Prediction:
    """Predict k against k = 0 on recorded answers that run in blocks of `concurrency`, in their order.

    Args:
        tracks: one per answer, at least one.
        k: up to the tracks' K.

    Raises:
        ValueError: no track, or a cost that is not there for each of them.
    """
    if not tracks or len(costs.prefill) != len(tracks) or (costs.draft_prefill and len(costs.draft_prefill) != len(tracks)):
        raise ValueError(f"{len(tracks)} tracks need as many prefill times and at least one answer")
    walks = [walk(track, k) for track in tracks]
    tokens = np.array([w.tokens for w in walks], dtype=np.float64)
    rounds = np.array([w.rounds for w in walks])
    num_drafts = sum(w.num_drafts for w in walks)
    drafted = min(1.0, num_drafts / rounds.sum()) if rounds.sum() else 0.0
    plain = _decode_seconds(tokens, 0, 0.0, concurrency, costs)
    now = _decode_seconds(rounds, k, drafted, concurrency, costs)
    first = float(sum(costs.prefill))
    drafting = first + (float(sum(costs.draft_prefill)) if k else 0.0)
    slack = Z * _relative_error(rounds, tokens) if k else 0.0
    accepted = np.sum([w.accepted_at for w in walks], axis=0) if k else np.zeros(0)
    offered = sum(w.num_draft_tokens for w in walks)

    def speedup(share: float) -> float:
        # A round emits at least one token, so no error of the acceptance gives more rounds than tokens.
        rounds_then = np.minimum(rounds * share, np.maximum(tokens, rounds))
        total = drafting + _decode_seconds(rounds_then, k, drafted, concurrency, costs)
        return (first + plain) / total if total > 0 else 1.0

    return Prediction(
        k=k,
        concurrency=concurrency,
        tokens_per_round=float(tokens.sum() / rounds.sum()) if rounds.sum() else 1.0,
        acceptance_rate=float(accepted.sum() / offered) if offered else 0.0,
        per_position=tuple((accepted / num_drafts).tolist()) if num_drafts else (0.0,) * k,
        decode_speedup=plain / now if now > 0 else 1.0,
        speedup=speedup(1.0),
        low=speedup(1 + slack),
        high=speedup(max(0.0, 1 - slack)),
    )


def best(predictions: Mapping[int, Sequence[Prediction]], hysteresis: float = HYSTERESIS) -> int:
    """The smallest k that is within `hysteresis` of the fastest, at the worst of the concurrencies.

    Args:
        predictions: by k, one per concurrency; k = 0 counts as 1 whether it is there or not.
    """
    worst = {0: 1.0} | {k: min(p.speedup for p in each) for k, each in predictions.items() if k}
    fastest = max(worst.values())
    return min(k for k, speedup in worst.items() if speedup * (1 + hysteresis) >= fastest)


def memory_multiple(step_seconds: float, weight_bytes: float, bandwidth: float) -> float:
    """How many times longer a plain step takes than reading the weights once: 1 is the limit of a memory-bound device.

    A baseline far from it makes speculation look good: a step's idle time is what verification hides in (Leviathan et al., 3.4).

    Args:
        step_seconds: of width 1 at batch 1.
        bandwidth: measured bytes a second that the device reads.

    Raises:
        ValueError: a figure is not positive.
    """
    if min(step_seconds, weight_bytes, bandwidth) <= 0:
        raise ValueError("the memory limit needs positive times, bytes and bandwidth")
    return step_seconds * bandwidth / weight_bytes


def _decode_seconds(rounds: Array, k: int, drafted: float, concurrency: int, costs: Costs) -> float:
    """All blocks' steps; rows leave a block as their answers end, and a step drafts if one of its rows does."""

    def step(rows: int) -> float:
        plain = costs.verify.at(rows, 1, costs.context)
        if k == 0:
            return plain
        share = 1 - (1 - drafted) ** rows
        wide = max(plain, costs.verify.at(rows, k + 1, costs.context))  # a wider step that was faster was faster by chance
        return share * (wide + costs.draft(rows, k)) + (1 - share) * plain

    seconds = {rows: step(rows) for rows in range(1, concurrency + 1)}
    total = 0.0
    for at in range(0, len(rounds), concurrency):
        block = np.sort(rounds[at : at + concurrency])
        passed = np.diff(block, prepend=0.0)
        total += float(sum(p * seconds[len(block) - i] for i, p in enumerate(passed)))
    return total


def _relative_error(rounds: Array, tokens: Array) -> float:
    """Standard error of rounds per token over the rounds per token; answers are the units, a ratio of sums."""
    n = len(rounds)
    if n < 2 or not rounds.sum():
        return 1.0
    residuals = rounds - rounds.sum() / tokens.sum() * tokens
    return sqrt(n / (n - 1) * float((residuals**2).sum())) / float(rounds.sum())
