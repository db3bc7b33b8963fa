"""A sweep's recommendation really run against k = 0, in interleaved blocks, to be held against what was predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from canary.domain.errors import NoDataError
from canary.domain.pairs import Arm, Timing
from canary.domain.traffic import Prompt
from canary.flow.ports import ArmRequest, ShadowEngine

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """One concurrency.

    Args:
        predicted, speedup: over k = 0, seconds per token from request to last token; of all blocks together.
        middle, lowest, highest: of single blocks.
    """

    concurrency: int
    blocks: int
    predicted: float
    speedup: float
    middle: float
    lowest: float
    highest: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted / self.speedup - 1


def verify(
    engine: ShadowEngine,
    prompts: Sequence[Prompt],
    predicted: float,
    concurrency: int,
    max_tokens: int,
    progress: Progress,
) -> Measured:
    """Time both arms of every block, the first arm changing from block to block; the first block is run once more beforehand.

    Args:
        engine: of the recommended policy.
        concurrency: requests of a block.
        max_tokens: the policy's clamp.

    Raises:
        NoDataError: there are fewer prompts than a block needs.
    """
    blocks = list(_blocks(prompts, concurrency))
    if not blocks:
        raise NoDataError(f"{len(prompts)} prompts make no block of {concurrency}", where="--verify", remedy="Give more prompts.")
    arms = (Arm.BASELINE, Arm.CANDIDATE)
    for arm in arms:
        _time(engine, blocks[0], arm, max_tokens)
    timed: dict[Arm, list[Timing]] = {arm: [] for arm in arms}
    for at, block in enumerate(blocks):
        progress(f"measured at {concurrency}", at, len(blocks))
        for arm in arms if at % 2 == 0 else arms[::-1]:
            timed[arm].append(_time(engine, block, arm, max_tokens))
    base, spec = timed[Arm.BASELINE], timed[Arm.CANDIDATE]
    ratios = [_per_token([b]) / _per_token([s]) for b, s in zip(base, spec, strict=True)]
    whole = _per_token(base) / _per_token(spec)
    return Measured(concurrency, len(blocks), predicted, whole, median(ratios), min(ratios), max(ratios))


def _blocks(prompts: Sequence[Prompt], concurrency: int) -> Iterator[Sequence[Prompt]]:
    """Whole blocks only: a shorter one would run at another concurrency."""
    for at in range(0, len(prompts) - concurrency + 1, concurrency):
        yield prompts[at : at + concurrency]


def _time(engine: ShadowEngine, block: Sequence[Prompt], arm: Arm, max_tokens: int) -> Timing:
    requests = [ArmRequest(p, p.params.clamped(max_tokens), _key(at)) for at, p in enumerate(block)]
    return engine.time_block(requests, arm)


def _key(at: int) -> bytes:
    """The same draws in both arms, as far as they ask for the same."""
    return at.to_bytes(16, "little")


def _per_token(timings: Sequence[Timing]) -> float:
    return sum(t.total_seconds for t in timings) / max(1, sum(t.num_tokens for t in timings))
