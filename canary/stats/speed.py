"""Is the candidate really faster? Paired seconds per output token, one observation per timed request.

It reads untraced passes only and never compares unpaired requests; a pair that cannot be compared is left out and counted, with
its reason (statistics 0b.7 and 4).
"""

from __future__ import annotations

import math

import numpy as np

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.pairs import Pair, Timing
from canary.stats.bounded import Bets, highest_excluded, log_budget, lowest_excluded, progress
from canary.stats.part import Context, Sums, Vector
from canary.stats.rates import sign_above, sign_needed
from canary.stats.strata import pack, reached, section

# Edges of the histogram of ratios that the interval is read from: 6 % steps, 2.5 % from 1 to 2.
EDGES = np.exp(
    np.concatenate(
        [np.linspace(math.log(0.5), 0, 13)[:-1], np.linspace(0, math.log(2), 29), np.linspace(math.log(2), math.log(4), 13)[1:]]
    )
)
CLIP = math.log(4)
TAIL_BETS = Bets.even(0.1, 0.3, 0.6, 0.95)


class Speed:
    """Ratio = baseline seconds per token / candidate seconds per token; above 1 the candidate is faster.

    The median is tested by signs: a ratio equal to the threshold counts against either claim. The gate passes if the median is
    proven above `speed_ratio` and the mean log ratio, clipped to 1/4..4, is proven above 0, so that a candidate that is faster at
    the median and stalls in the tail does not pass; it fails if either is proven below. Left out are pairs that are `untimed` (an
    arm has no timing), `short` (an arm emitted fewer than `min_speed_tokens`) or `invalid` (a time is not positive and finite).
    `log_e`: `speed.above`, `speed.below` (median), `speed.tail_above`, `speed.tail_below` (clipped mean).
    """

    name = "speed"
    gate = "speed"
    left_out = ("untimed", "short", "invalid")
    counts = ("requests", "above", "below", "tied", *left_out)
    totals = ("log_ratio", "baseline_seconds", "candidate_seconds", "baseline_ttft", "candidate_ttft", "baseline_log_ttft")
    more_totals = ("candidate_log_ttft", "baseline_tokens", "candidate_tokens")
    bins = tuple(f"bin.{i}" for i in range(len(EDGES) + 1))

    def names(self, context: Context) -> tuple[str, ...]:
        tails = (*TAIL_BETS.names("tail_above"), *TAIL_BETS.names("tail_below"))
        return (*self.counts, *self.totals, *self.more_totals, *tails, *self.bins)

    def increments(self, context: Context, pair: Pair) -> Vector:
        timings = pair.baseline_timing, pair.candidate_timing
        found = self._observation(context, *timings) if None not in timings else {"untimed": 1.0}
        return pack(self.names(context), found)

    def _observation(self, context: Context, baseline: Timing | None, candidate: Timing | None) -> dict[str, float]:
        assert baseline is not None
        assert candidate is not None
        if min(baseline.num_tokens, candidate.num_tokens) < max(2, context.gates.min_speed_tokens):
            return {"short": 1.0}
        per_token = baseline.seconds_per_token or math.nan, candidate.seconds_per_token or math.nan
        times = (*per_token, baseline.ttft_seconds, candidate.ttft_seconds, baseline.total_seconds, candidate.total_seconds)
        if not all(math.isfinite(t) and t > 0 for t in times):
            return {"invalid": 1.0}
        ratio, threshold = per_token[0] / per_token[1], context.gates.speed_ratio
        if not 0 < ratio < math.inf:
            return {"invalid": 1.0}
        y = min(max(math.log(ratio), -CLIP), CLIP)
        found = {
            "requests": 1.0,
            "above" if ratio > threshold else "below" if ratio < threshold else "tied": 1.0,
            f"bin.{int(np.searchsorted(EDGES, ratio, side='right'))}": 1.0,
            "log_ratio": y,
            "baseline_seconds": baseline.total_seconds,
            "candidate_seconds": candidate.total_seconds,
            "baseline_ttft": baseline.ttft_seconds,
            "candidate_ttft": candidate.ttft_seconds,
            "baseline_log_ttft": math.log(baseline.ttft_seconds),
            "candidate_log_ttft": math.log(candidate.ttft_seconds),
            "baseline_tokens": float(baseline.num_tokens),
            "candidate_tokens": float(candidate.num_tokens),
        }
        found |= dict(zip(TAIL_BETS.names("tail_above"), TAIL_BETS.above(y, 0.0, -CLIP).tolist(), strict=True))
        found |= dict(zip(TAIL_BETS.names("tail_below"), TAIL_BETS.below(y, 0.0, CLIP).tolist(), strict=True))
        return found

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        sums = Sums(self.names(context), values)
        above, below, tied = sums["above"], sums["below"], sums["tied"]
        return {
            "speed.above": sign_above(above, below + tied),
            "speed.below": sign_above(below, above + tied),
            "speed.tail_above": TAIL_BETS.log_e(section(sums, TAIL_BETS.names("tail_above"))),
            "speed.tail_below": TAIL_BETS.log_e(section(sums, TAIL_BETS.names("tail_below"))),
        }

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        n, threshold, budget = sums["requests"], context.gates.speed_ratio, log_budget(context.alpha)
        if not n:
            return [self._nothing(sums, threshold)]
        log_e = self.log_e(context, sums.values)
        peaks = {key: reached(sums, log_e, key) for key in log_e}
        won = {key: peak >= budget for key, peak in peaks.items()}
        for better, worse in (("speed.above", "speed.below"), ("speed.tail_above", "speed.tail_below")):
            if won[better] and won[worse]:  # it changed on the way: the side that leads now speaks
                won[better if log_e[better] <= log_e[worse] else worse] = False
        counts = section(sums, self.bins)
        value, (low, high) = _median(counts), _interval(counts, context.alpha)
        verdict, reason, tail = _verdict(won, threshold)
        if won["speed.below"]:
            high = threshold if high is None else min(high, threshold)
        return [
            GateEvidence(
                self.gate,
                GateRole.ECONOMY,
                verdict,
                reason,
                f"The median speed-up is {value:.2f} over {n:.0f} timed requests, {tail}.",
                value=value,
                low=max(low, threshold) if won["speed.above"] else low,
                high=high,
                threshold=threshold,
                n=int(n),
                needed=self._needed(context, sums, won) if verdict is not Verdict.FAIL else None,
                progress=min(progress(peaks[key], context.alpha) for key in ("speed.above", "speed.tail_above")),
                details=self._details(sums),
            )
        ]

    def _needed(self, context: Context, sums: Sums, won: dict[str, bool]) -> int | None:
        n, above = sums["requests"], sums["above"]
        median = 0 if won["speed.above"] else sign_needed(above, n - above, context.alpha)
        tail = 0 if won["speed.tail_above"] else TAIL_BETS.needed(section(sums, TAIL_BETS.names("tail_above")), n, context.alpha)
        return None if median is None or tail is None else max(median, tail)

    def _details(self, sums: Sums) -> dict[str, object]:
        n = sums["requests"]
        found: dict[str, object] = {name: int(sums[name]) for name in ("above", "below", "tied", *self.left_out)}
        found["mean_speed_up"] = math.exp(sums["log_ratio"] / n)
        found["end_to_end_ratio"] = sums["baseline_seconds"] / sums["candidate_seconds"]
        for arm in ("baseline", "candidate"):
            found[f"{arm}_ttft_mean_seconds"] = sums[f"{arm}_ttft"] / n
            found[f"{arm}_ttft_typical_seconds"] = math.exp(sums[f"{arm}_log_ttft"] / n)
            found[f"{arm}_tokens_per_second"] = sums[f"{arm}_tokens"] / sums[f"{arm}_seconds"]
        return found

    def _nothing(self, sums: Sums, threshold: float) -> GateEvidence:
        left = {name: int(sums[name]) for name in self.left_out}
        told = ", ".join(f"{count} {name}" for name, count in left.items())
        return GateEvidence(
            self.gate,
            GateRole.ECONOMY,
            Verdict.NO_DATA,
            "no_data",
            f"No request has been timed in both arms yet ({told}).",
            threshold=threshold,
            progress=0.0,
            details=dict(left),
        )


def _verdict(won: dict[str, bool], threshold: float) -> tuple[Verdict, str, str]:
    """(verdict, reason, end of the sentence), from which claims are proven."""
    if won["speed.below"]:
        return Verdict.FAIL, "too_slow", f"proven to be below {threshold:g}"
    if won["speed.tail_below"]:
        return Verdict.FAIL, "slower_in_the_tail", "but the mean is proven to be slower than the baseline: some requests stall"
    if won["speed.above"] and won["speed.tail_above"]:
        return Verdict.PASS, "faster", f"proven to be above {threshold:g}"
    if won["speed.above"]:
        tail = f"proven to be above {threshold:g}, but the mean is not yet proven to be faster than the baseline"
        return Verdict.INCONCLUSIVE, "tail_unproven", tail
    return Verdict.INCONCLUSIVE, "not_yet", f"not yet proven to be above {threshold:g}"


def _median(counts: Vector) -> float:
    """The median ratio, geometric inside its bin of the histogram; the outer bins give their edge."""
    total, at = float(counts.sum()) / 2, 0
    while counts[: at + 1].sum() < total:
        at += 1
    if at == 0 or at == len(EDGES):
        return float(EDGES[min(at, len(EDGES) - 1)])
    inside = (total - float(counts[:at].sum())) / float(counts[at])
    return float(EDGES[at - 1] ** (1 - inside) * EDGES[at] ** inside)


def _interval(counts: Vector, alpha: float) -> tuple[float, float | None]:
    """Anytime bounds of the median ratio, each at alpha, by inverting the sign test over `EDGES`; 0 and None outside them.

    A ratio on an edge counts as at least that edge, so that the interval is closed.
    """
    total = float(counts.sum())
    under = np.cumsum(counts)[:-1]  # ratios below each edge, [edges]
    above = np.array([sign_above(total - u, u) for u in under.tolist()])
    below = np.array([sign_above(u, total - u) for u in under.tolist()])
    budget = log_budget(alpha)
    high = lowest_excluded(EDGES, below >= budget, math.inf)
    return highest_excluded(EDGES, above >= budget, 0.0), high if math.isfinite(high) else None
