"""Which timed pairs can be compared: both arms timed, real times, and the same load band in both.

A comparison across load bands is none (`domain.load`). Of a block the first pair carries the timing and the others carry none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from canary.domain.load import band_of
from canary.domain.pairs import Pair, Timing
from canary.stats.part import Context


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


@dataclass(frozen=True, slots=True)
class Wording:
    """How a gate speaks of what it counts.

    Args:
        unit: `requests`, or `blocks` where requests are timed together.
        where: the load band, as the end of a phrase.
        per_unit: requests that one unit takes.
    """

    unit: str
    where: str
    per_unit: int

    @property
    def timed(self) -> str:
        """What has been timed, e.g. `timed blocks at concurrency 2-4`."""
        return f"timed {self.unit} {self.where}"

    @property
    def none_yet(self) -> str:
        """That nothing has been timed, without its end."""
        return f"No {self.unit.removesuffix('s')} has been timed in both arms {self.where}"


def wording(context: Context) -> Wording:
    """The words for the band that decides."""
    asked = context.gates.speed_concurrency
    return Wording("requests" if asked == 1 else "blocks", f"at concurrency {band_of(asked)}", asked)
