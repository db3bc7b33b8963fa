"""What is seen of one live request after it was served: unpaired, from either arm, and only facts, never a prompt or an answer.

An observation says what was measured and leaves out what was not; it never holds a number that contradicts itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from itertools import pairwise

from canary.domain.errors import UsageError
from canary.domain.pairs import Arm

FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "error")
LONGEST_ID = 512
MAX_SECONDS = 86_400.0  # of a time to first token, or per token: what is longer was not measured in seconds
MAX_COUNT = 10_000_000
MOST_POSITIONS = 64


@dataclass(frozen=True, slots=True)
class Observation:
    """One live request, or something learnt about it later, such as a thumb (DESIGN section 1.4).

    Args:
        observation_id: unique within its route; what is learnt later gets an id of its own.
        arm: the variant that served it.
        observed_at: when its answer ended, seconds since the epoch.
        finish_reason: one of `FINISH_REASONS`, or None where the observation is not about how the answer ended.
        error: why the request failed, None if it did not.
        ttft_seconds: from the request's arrival to its first token.
        seconds_per_token: (request seconds - TTFT) / (tokens - 1).
        num_drafts, num_draft_tokens, num_accepted_tokens: counts of the engine, all three or none.
        accepted_per_position: drafts of which position 1, 2, ... was accepted, where the engine tells; needs the three counts.
        valid: on a structured route, whether the answer is what the route's clients can read; None where cut or unknown.
        task_success: whether the caller's task succeeded.
        thumbs: +1, -1, or None.
        memory_headroom: share of the engine's memory that was free, 0 to 1.
        stage, weight: where the gateway's flag stood, the weight in basis points.
        engine: fingerprint of the engine that served it.
        concurrency: requests in the engine together when it was served, at least 1; its load band counts (`domain.load`).
    """

    route: str
    observation_id: str
    arm: Arm
    observed_at: float
    finish_reason: str | None = None
    error: str | None = None
    ttft_seconds: float | None = None
    seconds_per_token: float | None = None
    num_drafts: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    accepted_per_position: tuple[int, ...] | None = None
    valid: bool | None = None
    task_success: bool | None = None
    thumbs: int | None = None
    memory_headroom: float | None = None
    stage: str | None = None
    weight: int | None = None
    engine: str | None = None
    concurrency: int | None = None

    @property
    def failed(self) -> bool | None:
        """Whether the request failed; None where the observation does not say how it ended."""
        if self.error is not None or self.finish_reason == "error":
            return True
        return None if self.finish_reason is None else False

    def check(self) -> None:
        """Refuse an observation that cannot be true.

        Raises:
            UsageError: names the field, and never repeats its value where that is a text.
        """
        if not 0 < len(self.observation_id) <= LONGEST_ID:
            raise _wrong("observation_id", f"must have 1 to {LONGEST_ID} characters")
        if not (math.isfinite(self.observed_at) and self.observed_at > 0):
            raise _wrong("observed_at", "must be seconds since the epoch, above 0")
        if self.finish_reason is not None and self.finish_reason not in FINISH_REASONS:
            raise _wrong("finish_reason", f"must be one of {', '.join(FINISH_REASONS)}")
        for name in ("ttft_seconds", "seconds_per_token"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds <= MAX_SECONDS:
                raise _wrong(name, f"is {seconds:g}, but must be above 0 and at most {MAX_SECONDS:g} seconds")
        if self.thumbs not in (None, 1, -1):
            raise _wrong("thumbs", f"is {self.thumbs}, but must be 1 or -1")
        if self.memory_headroom is not None and not 0 <= self.memory_headroom <= 1:
            raise _wrong("memory_headroom", f"is {self.memory_headroom:g}, but must be a share from 0 to 1")
        if self.weight is not None and not 0 <= self.weight <= 10_000:
            raise _wrong("weight", f"is {self.weight}, but must be basis points from 0 to 10000")
        self._check_counts()
        if self.concurrency is not None and not 0 < self.concurrency <= MAX_COUNT:
            raise _wrong("concurrency", f"is {self.concurrency}, but must be from 1 to {MAX_COUNT}")
        measured = [f.name for f in fields(self)[4:-4] if getattr(self, f.name) is not None]
        if not measured:
            raise _wrong("finish_reason", "is missing, and nothing else was measured")

    def _check_counts(self) -> None:
        """Drafts, draft tokens and accepted tokens, which bound each other."""
        given = (self.num_drafts, self.num_draft_tokens, self.num_accepted_tokens)
        if all(count is None for count in given):
            if self.accepted_per_position is not None:
                raise _wrong("accepted_per_position", "needs num_drafts, num_draft_tokens and num_accepted_tokens beside it")
            return
        drafts, drafted, accepted = (count if count is not None else -1 for count in given)
        if min(drafts, drafted, accepted) < 0 or max(drafts, drafted, accepted) > MAX_COUNT:
            raise _wrong("num_draft_tokens", f"needs num_drafts and num_accepted_tokens beside it, each from 0 to {MAX_COUNT}")
        if accepted > drafted:
            raise _wrong("num_accepted_tokens", f"is {accepted}, more than the {drafted} draft tokens")
        if drafts > drafted or (drafted > 0 and drafts == 0):
            raise _wrong("num_drafts", f"is {drafts}, which does not fit {drafted} draft tokens")
        self._check_positions(drafts, accepted)

    def _check_positions(self, drafts: int, accepted: int) -> None:
        """A position is accepted only with all before it, so that the counts never rise."""
        found = self.accepted_per_position
        if found is None:
            return
        if not 0 < len(found) <= MOST_POSITIONS:
            raise _wrong("accepted_per_position", f"must have 1 to {MOST_POSITIONS} counts")
        falling = all(later <= earlier for earlier, later in pairwise((drafts, *found)))
        if not falling or found[-1] < 0 or sum(found) != accepted:
            raise _wrong("accepted_per_position", f"must fall from at most {drafts} and add up to the {accepted} accepted tokens")


def _wrong(name: str, detail: str) -> UsageError:
    return UsageError(f"{name} {detail}", where=name, remedy="Leave out what was not measured.")
