"""Does the first token come as soon as before? Paired TTFT of untraced passes: its median, and the share of slow ones.

Speculation should not change the TTFT, so the gates ask for non-inferiority and never reward a faster one (statistics 4).
"""

from __future__ import annotations

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.pairs import Pair
from canary.stats import histogram, ttft_tail
from canary.stats.bounded import log_budget, progress
from canary.stats.part import Context, Sums, Vector
from canary.stats.rates import sign_above, sign_needed
from canary.stats.strata import pack, reached, section
from canary.stats.timings import compared, decides, wording


class Ttft:
    """Within = candidate TTFT <= `ttft_ratio` * baseline TTFT + `ttft_slack_seconds`; a sign test of its median.

    Gates: `ttft`, with the median of (candidate TTFT - slack) / baseline TTFT as its value, so that value, interval and threshold
    speak of the very comparison that is counted; and `ttft_tail`, see there. Pairs are left out as in the speed gate, but never
    for being short: the first token of a short answer is one too.
    `log_e`: `ttft.within`, `ttft.beyond` (median), `ttft.tail_below`, `ttft.tail_above` (excess share of slow ones).
    """

    name = "ttft"
    gate = "ttft"
    left_out = ("untimed", "invalid", "unmatched", "other_load")
    counts = ("requests", "within", "beyond", *left_out)

    def names(self, context: Context) -> tuple[str, ...]:
        return (*self.counts, *ttft_tail.COUNTS, *histogram.BINS)

    def increments(self, context: Context, pair: Pair) -> Vector:
        band, timings = compared(pair)
        if timings is None:
            return pack(self.names(context), {band: 1.0})
        if not decides(context, band):
            return pack(self.names(context), {"other_load": 1.0})
        baseline, candidate = (timing.ttft_seconds for timing in timings)
        gates = context.gates
        within = candidate <= gates.ttft_ratio * baseline + gates.ttft_slack_seconds
        ratio = (candidate - gates.ttft_slack_seconds) / baseline
        found = {"requests": 1.0, "within" if within else "beyond": 1.0, histogram.bin_of(ratio): 1.0}
        return pack(self.names(context), found | ttft_tail.observed(context, baseline, candidate))

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        sums = Sums(self.names(context), values)
        within, beyond = sums["within"], sums["beyond"]
        median = {"ttft.within": sign_above(within, beyond), "ttft.beyond": sign_above(beyond, within)}
        return median | ttft_tail.log_e(context, sums)

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        log_e = self.log_e(context, sums.values)
        return [self._median(context, sums, log_e), ttft_tail.assess(context, sums, log_e)]

    def _median(self, context: Context, sums: Sums, log_e: dict[str, float]) -> GateEvidence:
        n, within, limit = int(sums["requests"]), sums["within"], context.gates.ttft_ratio
        left: dict[str, object] = {name: int(sums[name]) for name in self.left_out}
        words = wording(context)
        if not n:
            told = ", ".join(f"{count} {name}" for name, count in left.items())
            return GateEvidence(
                self.gate,
                GateRole.ECONOMY,
                Verdict.NO_DATA,
                "no_data",
                f"{words.none_yet} yet ({told}).",
                threshold=limit,
                unit=words.unit,
                progress=0.0,
                details=left,
            )
        above, below = reached(sums, log_e, "ttft.within"), reached(sums, log_e, "ttft.beyond")
        needed = sign_needed(within, sums["beyond"], context.alpha)
        verdict, reason, tail = _verdict(context, log_e, above, below, needed)
        counts = section(sums, histogram.BINS)
        low, high = histogram.interval(counts, context.alpha)
        if verdict is Verdict.PASS:
            high = limit if high is None else min(high, limit)
        slack = f"{1000 * context.gates.ttft_slack_seconds:g} ms"
        facts = f"In {within:.0f} of {n} {words.timed} the first token came within {limit:g} times the baseline's TTFT + {slack}"
        return GateEvidence(
            self.gate,
            GateRole.ECONOMY,
            verdict,
            reason,
            f"{facts}, {tail}.",
            value=histogram.median(counts),
            low=max(low, limit) if verdict is Verdict.FAIL else low,
            high=high,
            threshold=limit,
            n=n,
            unit=words.unit,
            needed={Verdict.PASS: 0, Verdict.FAIL: None}.get(verdict, needed),
            progress=progress(above, context.alpha),
            details=left | {"within": int(within), "beyond": int(sums["beyond"]), "requests_per_unit": words.per_unit},
        )


def _verdict(
    context: Context, log_e: dict[str, float], above: float, below: float, needed: int | None
) -> tuple[Verdict, str, str]:
    """(verdict, reason, end of the sentence); where both claims were proven on the way, the side that leads now speaks."""
    budget = log_budget(context.alpha)
    leads = log_e["ttft.within"] >= log_e["ttft.beyond"]
    if below >= budget and not (above >= budget and leads):
        return Verdict.FAIL, "later_first_token", "proven to be less than half of them: the first token comes later"
    if above >= budget:
        return Verdict.PASS, "in_time", "proven to be more than half of them"
    more = f"about {needed} more {wording(context).unit} are needed" if needed is not None else "the evidence is not growing"
    return Verdict.INCONCLUSIVE, "not_yet", f"not yet proven to be more than half of them: {more}"
