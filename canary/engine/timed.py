"""One untraced pass over a block of requests that start together, by the wall clock.

It keeps no rows and scores nothing: a traced pass is never timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from canary.domain.pairs import Timing
from canary.engine.decode import Decoder
from canary.engine.requests import Job


def timed(decoder: Decoder, jobs: Callable[[], Sequence[Job]]) -> Timing:
    """Run a block; tokenisation and prefill are part of its time to first token.

    Args:
        jobs: makes the block's jobs, while the clock runs.

    Raises:
        ValueError: nothing is asked for, or more than the decoder runs together.
    """
    start = perf_counter()
    asked = jobs()
    if not 1 <= len(asked) <= decoder.most:
        raise ValueError(f"a block of {len(asked)} requests cannot be timed: the engine runs 1 to {decoder.most} together")
    done = list(decoder.run(asked))
    end = perf_counter()
    first = max(end if running.first_at is None else running.first_at for running in done)
    return Timing(first - start, end - start, sum(len(running.token_ids) for running in done), len(asked))
