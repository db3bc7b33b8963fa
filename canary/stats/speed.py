"""Is the candidate really faster? Paired seconds per output token, one observation per timed request or block of requests.

It reads untraced passes only and never compares unpaired requests; a pair that cannot be compared is left out and counted, with
its reason (statistics 0b.7 and 4).
"""

from __future__ import annotations

import math

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.load import BANDS, band_of
from canary.domain.pairs import Pair, Timing
from canary.stats import histogram
from canary.stats.bounded import Bets, Moments, log_budget, lower_bound, progress, upper_bound
from canary.stats.part import Context, Sums, Vector
from canary.stats.rates import sign_above, sign_needed
from canary.stats.strata import pack, reached, section
from canary.stats.timings import compared, decides, wording

CLIP = math.log(4)
TAIL_BETS = Bets.even(0.1, 0.3, 0.6, 0.95)


class Speed:
    """Ratio = baseline seconds per token / candidate seconds per token; above 1 the candidate is faster.

    The median is tested by signs: a ratio equal to the threshold counts against either claim. The gate passes if the median is
    proven above `speed_ratio` and the mean log ratio, clipped to 1/4..4, is proven above 0 (the guard), so that a candidate that
    is faster at the median and stalls in the tail does not pass; it fails if either is proven below. It decides in the load band
    of `speed_concurrency`; the mean speed-up of every other band is shown. Left out are pairs that are `untimed`, `invalid` or
    `unmatched` (see `timings`), `short` (an arm emitted fewer than `min_speed_tokens` per request), or of an `other_load`.
    `log_e`: `speed.above`, `speed.below` (median), `speed.tail_above`, `speed.tail_below` (clipped mean).
    """

    name = "speed"
    gate = "speed"
    left_out = ("untimed", "short", "invalid", "unmatched", "other_load")
    counts = ("requests", "above", "below", "tied", *left_out)
    totals = ("log_ratio", "baseline_seconds", "candidate_seconds", "baseline_ttft", "candidate_ttft", "baseline_log_ttft")
    more_totals = ("candidate_log_ttft", "baseline_tokens", "candidate_tokens")
    by_band = tuple(f"band.{band}.{name}" for band in BANDS for name in ("requests", "above", "log_ratio", "log_ratio_2"))

    def names(self, context: Context) -> tuple[str, ...]:
        tails = (*TAIL_BETS.names("tail_above"), *TAIL_BETS.names("tail_below"))
        return (*self.counts, *self.totals, *self.more_totals, *tails, *self.by_band, *histogram.BINS)

    def increments(self, context: Context, pair: Pair) -> Vector:
        band, timings = compared(pair)
        found = {band: 1.0} if timings is None else self._observation(context, band, *timings)
        return pack(self.names(context), found)

    def _observation(self, context: Context, band: str, baseline: Timing, candidate: Timing) -> dict[str, float]:
        if any(t.num_tokens < max(2, context.gates.min_speed_tokens) * t.concurrency for t in (baseline, candidate)):
            return {"short": 1.0}
        per_token = [timing.seconds_per_token or math.nan for timing in (baseline, candidate)]
        if not all(math.isfinite(t) and t > 0 for t in per_token):
            return {"invalid": 1.0}
        ratio, threshold = per_token[0] / per_token[1], context.gates.speed_ratio
        if not 0 < ratio < math.inf:
            return {"invalid": 1.0}
        y = min(max(math.log(ratio), -CLIP), CLIP)
        seen = {"requests": 1.0, "above": float(ratio > threshold), "log_ratio": y, "log_ratio_2": y * y}
        found = {f"band.{band}.{name}": value for name, value in seen.items()}
        if not decides(context, band):
            return found | {"other_load": 1.0}
        found |= {
            "requests": 1.0,
            "above" if ratio > threshold else "below" if ratio < threshold else "tied": 1.0,
            histogram.bin_of(ratio): 1.0,
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
        n, threshold, budget, words = sums["requests"], context.gates.speed_ratio, log_budget(context.alpha), wording(context)
        if not n:
            return [self._nothing(context, sums)]
        log_e = self.log_e(context, sums.values)
        peaks = {key: reached(sums, log_e, key) for key in log_e}
        won = {key: peak >= budget for key, peak in peaks.items()}
        for better, worse in (("speed.above", "speed.below"), ("speed.tail_above", "speed.tail_below")):
            if won[better] and won[worse]:  # it changed on the way: the side that leads now speaks
                won[better if log_e[better] <= log_e[worse] else worse] = False
        counts = section(sums, histogram.BINS)
        value, (low, high) = histogram.median(counts), histogram.interval(counts, context.alpha)
        guard = _mean(sums, band_of(context.gates.speed_concurrency), context.alpha)
        verdict, reason, tail = _verdict(won, threshold)
        told = f"the mean of clipped ratios is {guard[0]:.2f} [{guard[1]:.2f} to {guard[2]:.2f}]"
        if won["speed.below"]:
            high = threshold if high is None else min(high, threshold)
        return [
            GateEvidence(
                self.gate,
                GateRole.ECONOMY,
                verdict,
                reason,
                f"The median speed-up is {value:.2f} over {n:.0f} {words.timed}, {tail}; {told}.",
                value=value,
                low=max(low, threshold) if won["speed.above"] else low,
                high=high,
                threshold=threshold,
                n=int(n),
                needed=self._needed(context, sums, won) if verdict is not Verdict.FAIL else None,
                unit=words.unit,
                progress=min(progress(peaks[key], context.alpha) for key in ("speed.above", "speed.tail_above")),
                details=self._details(context, sums),
            )
        ]

    def _needed(self, context: Context, sums: Sums, won: dict[str, bool]) -> int | None:
        n, above = sums["requests"], sums["above"]
        median = 0 if won["speed.above"] else sign_needed(above, n - above, context.alpha)
        tail = 0 if won["speed.tail_above"] else TAIL_BETS.needed(section(sums, TAIL_BETS.names("tail_above")), n, context.alpha)
        return None if median is None or tail is None else max(median, tail)

    def _details(self, context: Context, sums: Sums) -> dict[str, object]:
        n, own = sums["requests"], band_of(context.gates.speed_concurrency)
        found: dict[str, object] = {name: int(sums[name]) for name in ("above", "below", "tied", *self.left_out)}
        found["load_band"], found["requests_per_unit"] = own, context.gates.speed_concurrency
        found["bands"] = _bands(sums, context.alpha)
        found["mean_speed_up"], *bounds = _mean(sums, own, context.alpha)
        found["mean_speed_up_interval"] = bounds
        found["end_to_end_ratio"] = sums["baseline_seconds"] / sums["candidate_seconds"]
        for arm in ("baseline", "candidate"):
            found[f"{arm}_ttft_mean_seconds"] = sums[f"{arm}_ttft"] / n
            found[f"{arm}_ttft_typical_seconds"] = math.exp(sums[f"{arm}_log_ttft"] / n)
            found[f"{arm}_tokens_per_second"] = sums[f"{arm}_tokens"] / sums[f"{arm}_seconds"]
        return found

    def _nothing(self, context: Context, sums: Sums) -> GateEvidence:
        left: dict[str, object] = {name: int(sums[name]) for name in self.left_out}
        told, words = ", ".join(f"{count} {name}" for name, count in left.items()), wording(context)
        return GateEvidence(
            self.gate,
            GateRole.ECONOMY,
            Verdict.NO_DATA,
            "no_data",
            f"{words.none_yet} yet ({told}).",
            threshold=context.gates.speed_ratio,
            unit=words.unit,
            progress=0.0,
            details=left | ({"bands": bands} if (bands := _bands(sums, context.alpha)) else {}),
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


def _bands(sums: Sums, alpha: float) -> dict[str, object]:
    """What was seen in each load band with a request: requests, those above the threshold, and the mean with its bounds."""
    found: dict[str, object] = {}
    for band in BANDS:
        if n := sums[f"band.{band}.requests"]:
            value, *bounds = _mean(sums, band, alpha)
            above = int(sums[f"band.{band}.above"])
            found[band] = {"requests": int(n), "above": above, "mean_speed_up": value, "mean_speed_up_interval": bounds}
    return found


def _mean(sums: Sums, band: str, alpha: float) -> tuple[float, float, float]:
    """Geometric mean of the clipped ratios in a load band with at least one request, and its anytime bounds, each at alpha."""
    n, total, squares = (sums[f"band.{band}.{name}"] for name in ("requests", "log_ratio", "log_ratio_2"))
    moments = Moments(n, total, squares)
    bounds = (bound(TAIL_BETS, moments, -CLIP, CLIP, alpha) for bound in (lower_bound, upper_bound))
    low, high = (math.exp(b) for b in bounds)
    return math.exp(total / n), low, high
