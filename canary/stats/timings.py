"""Which timed pairs can be compared: both arms timed, real times, and the same load band in both.

A comparison across load bands is none: a batch of many requests is slower per request whatever the arm.
"""

from __future__ import annotations

import math

from canary.domain.pairs import Pair, Timing
from canary.stats.part import Context

BANDS = {"1": (1, 1), "2-4": (2, 4), "5-16": (5, 16), "17+": (17, None)}  # requests in the engine together


def band_of(concurrency: int) -> str:
    """The load band of so many requests in the engine together.

    Raises:
        ValueError: fewer than one.
    """
    for name, (low, high) in BANDS.items():
        if low <= concurrency and (high is None or concurrency <= high):
            return name
    raise ValueError(f"a timing has concurrency {concurrency}, but must have at least 1")


def compared(pair: Pair) -> tuple[str, tuple[Timing, Timing] | None]:
    """What to do with a pair's timings.

    Returns:
        (load band, (baseline, candidate)), or (why they are left out, None): `untimed` (an arm has none), `invalid` (a time is
        not positive and finite) or `unmatched` (the arms ran in different bands).
    """
    baseline, candidate = pair.baseline_timing, pair.candidate_timing
    if baseline is None or candidate is None:
        return "untimed", None
    times = (t for timing in (baseline, candidate) for t in (timing.ttft_seconds, timing.total_seconds))
    if not all(math.isfinite(t) and t > 0 for t in times):
        return "invalid", None
    bands = {band_of(timing.concurrency) for timing in (baseline, candidate)}
    return (bands.pop(), (baseline, candidate)) if len(bands) == 1 else ("unmatched", None)


def decides(context: Context, band: str) -> bool:
    """Whether the gates decide on this band; the others are shown."""
    return band == band_of(context.gates.speed_concurrency)
