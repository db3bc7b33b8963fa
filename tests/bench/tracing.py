"""What tracing adds to an engine step, and where it goes: traced and untraced decoding of the same requests, back to back.

Both keep the prefills in, as the route does. It changes nothing but for the time that it counts.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any

from canary.domain.traffic import SamplingParams
from canary.engine import alternatives, checkpoints, record, trace
from canary.engine.decode import Decoder
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.requests import Job

K, BATCH, MAX_NGRAM = 4, 8, 3
ROUNDS = 3

KEEP, TRACE = "keep rows", "trace columns"  # all that a traced step does beside an untraced one; the rest lies inside them

# Where the time goes: functions that tracing alone calls, in the module that looks them up.
PARTS: dict[str, tuple[Any, str]] = {
    KEEP: (record.Step, "keep_rows"),
    TRACE: (record.Step, "trace"),
    "gather emitted rows": (trace, "gather_emitted"),
    "unfiltered rows": (record, "unfiltered"),
    "block sums": (trace, "block_sums"),
    "mass below and above": (trace, "mass_around"),
    "largest entry": (trace, "argmax"),
    "hot, cold and other own rows": (alternatives, "of_target"),
    "shift, unfiltered": (alternatives, "of_row"),
    "draft side": (trace, "_draft_side"),
    "recovered": (trace, "_recovered_columns"),
    "bonus": (trace, "_bonus_column"),
}


@dataclass(frozen=True)
class Cost:
    """Processor seconds.

    Args:
        plain: of one untraced step of the batch.
        traced: what tracing adds to it, measured inside traced steps: the difference of two runs would be mostly noise.
        parts: the pieces of it, some inside others.
    """

    model: str
    batch: int
    k: int
    plain: float
    traced: float
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return self.traced / self.plain


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Count the processor time of `PARTS`."""
    found = {name: (owner, attribute, getattr(owner, attribute)) for name, (owner, attribute) in PARTS.items()}

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] = spent.get(name, 0.0) + process_time() - start

        return call

    for name, (owner, attribute, function) in found.items():
        setattr(owner, attribute, counting(name, function))
    try:
        yield
    finally:
        for owner, attribute, function in found.values():
            setattr(owner, attribute, function)


def measure(model: str, cache: Path, *, new: int = 32, seed: int = 0) -> Cost:
    """Decode a full batch with and without a trace; medians of a few rounds, interleaved.

    Args:
        new: tokens per answer.
    """
    loaded, words = checkpoints.load(checkpoints.prepare(model, cache), "bfloat16")
    decoder = Decoder(RowForward(loaded, BATCH), words, frozenset(), NgramDrafter(BATCH, MAX_NGRAM), K)
    decoder.want_tv = False
    rng = random.Random(seed)
    text = words("The quick brown fox jumps over the lazy dog. " * 12)["input_ids"]
    jobs = [
        Job(i, tuple(text[: 40 + rng.randrange(40)]), SamplingParams(new, temperature=1.0), (rng.getrandbits(31), i))
        for i in range(BATCH)
    ]

    def step(traced: bool) -> float:
        start = process_time()
        steps = max(len(running.drafted) for running in decoder.run(jobs, traced=traced))
        return (process_time() - start) / steps

    step(True)
    plain: list[float] = []
    spent: dict[str, float] = {}
    steps = 0
    for _ in range(ROUNDS):
        plain.append(step(False))
        with timed(spent):
            steps += max(len(running.drafted) for running in decoder.run(jobs, traced=True))
    parts = {name: seconds / steps for name, seconds in sorted(spent.items(), key=lambda each: -each[1])}
    return Cost(model, BATCH, K, statistics.median(plain), parts[KEEP] + parts[TRACE], parts)
