"""Does the clock favour a seat? Signs of the A/A pairs' speed ratios, of which either is as likely where both seats run the same.

It reads untraced passes only and says nothing about how fast anything is.
"""

from __future__ import annotations

import math

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import Pair
from canary.stats.part import Context, Sums, Vector
from canary.stats.rates import sign_above
from canary.stats.strata import pack


class Clock:
    """Ratio = seconds per token of the baseline's seat / of the candidate's seat, against "above and below 1 are equally likely".

    Which seat runs first is a fair coin of the pair's, so the null holds exactly whatever the first pass costs: the seats can be
    exchanged. Equal times say nothing and are left out of the bet, which the null allows: given that they differ, it is a coin.
    `log_e`: `clock`, the mean of the sign test's two directions (`rates.sign_above`). It adds no gate of its own.
    """

    name = "clock"
    left_out = ("untimed", "short", "invalid")
    counts = ("timed", "candidate_faster", "candidate_slower", "tied", *left_out)

    def names(self, context: Context) -> tuple[str, ...]:
        return (*self.counts, "log_ratio")

    def increments(self, context: Context, pair: Pair) -> Vector:
        return pack(self.names(context), self._observation(context, pair))

    def _observation(self, context: Context, pair: Pair) -> dict[str, float]:
        baseline, candidate = pair.baseline_timing, pair.candidate_timing
        if baseline is None or candidate is None:
            return {"untimed": 1.0}
        if any(t.num_tokens < max(2, context.gates.min_speed_tokens) * t.concurrency for t in (baseline, candidate)):
            return {"short": 1.0}
        first, second = baseline.seconds_per_token or math.nan, candidate.seconds_per_token or math.nan
        if not (0 < first < math.inf and 0 < second < math.inf):
            return {"invalid": 1.0}
        side = "candidate_faster" if first > second else "candidate_slower" if first < second else "tied"
        return {"timed": 1.0, side: 1.0, "log_ratio": math.log(first) - math.log(second)}

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        sums = Sums(self.names(context), values)
        faster, slower = sums["candidate_faster"], sums["candidate_slower"]
        both = np.logaddexp(sign_above(faster, slower), sign_above(slower, faster))
        return {"clock": both - math.log(2)}

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        """No gate: its wealth is a term of `control`'s."""
        return []
