"""Whether the two arms of a pair can be compared at all: each in its seat, the same request, counts that add up, clocks that run.

It judges form only; how the arms answered, and how fast, is what the battery is for.
"""

from __future__ import annotations

import math

from canary.domain.errors import IdentityError
from canary.domain.pairs import Arm, Generation, Pair, Timing

FINISH_REASONS = ("stop", "length", "error")


def problem(pair: Pair) -> str | None:
    """Why the arms cannot be compared, in words that name the field; None if they can."""
    seats = ((Arm.BASELINE, pair.baseline, pair.baseline_timing), (Arm.CANDIDATE, pair.candidate, pair.candidate_timing))
    for arm, generation, timing in seats:
        why = _seat(arm, generation) or (None if timing is None else _clock(timing))
        if why:
            return f"{arm}: {why}"
    one, other = pair.baseline.request_digest, pair.candidate.request_digest
    if one and other and one != other:
        return f"request_digest: the arms ran different prompts or parameters ({one[:12]} and {other[:12]})"
    return None


def _seat(arm: Arm, generation: Generation) -> str | None:
    if generation.arm is not arm:
        return f"arm is {generation.arm}"
    if generation.finish_reason not in FINISH_REASONS:
        return f"finish_reason {generation.finish_reason!r} is unknown"
    if generation.error is not None:
        return None
    if arm is Arm.BASELINE and generation.stats.num_draft_tokens:
        return f"num_draft_tokens is {generation.stats.num_draft_tokens}, but the baseline drafts nothing"
    try:
        generation.stats.check(len(generation.token_ids))
    except IdentityError as error:
        return error.detail
    return None


def _clock(timing: Timing) -> str | None:
    """A time that cannot be, as from a clock that was set back between two looks at it."""
    first, last = timing.ttft_seconds, timing.total_seconds
    if not (math.isfinite(first) and math.isfinite(last)):
        return f"ttft_seconds or total_seconds is not a number ({first}, {last})"
    if first < 0 or last < first:
        return f"the clock went backwards: ttft_seconds {first:.6g}, total_seconds {last:.6g}"
    return None
