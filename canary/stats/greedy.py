"""Greedy requests: does the candidate ever emit a token that the reference would not have chosen?

Text equality is never looked at: one near tie changes all that follows, in the baseline too. Source: statistics 3.7 and 0b.4.
"""

from __future__ import annotations

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import Pair
from canary.domain.traffic import Stratum
from canary.stats.part import Context, Sums, Vector
from canary.stats.rate_gate import Claim, judge, sign_increments
from canary.stats.rates import rate_above, rate_below, sign_above
from canary.stats.rows import both_rows, scored
from canary.stats.strata import pack, reached, tested_strata

EXACT_TAU_GAP = 1e-3  # logits; fp32 rows have no noise to allow for


class Greedy:
    """Teacher-forced logit gaps of the greedy stratum; a gap above tau_gap is a violation.

    `log_e`: `greedy_gap` (kill), the smaller of two e-processes: violations are at most `gap_floor` of the positions, and a
    request with one is as likely in the baseline as in the candidate (see `rows.Outliers`). `gap.below`, `gap.above`, `gap.floor`
    against `gap_rate`; `request.below` and `request.above` against `request_margin`.
    Where rows are exact (fp32), tau_gap is 1e-3 or the policy's, whichever is smaller.
    """

    name = "greedy"
    counts = ("requests", "greedy_requests", "positions", "violations", "baseline_positions", "baseline_violations")
    certified = ("certified_positions", "certified_violations", "certified_requests", "violating_requests")
    signs = ("only_candidate", "only_baseline")

    def names(self, context: Context) -> tuple[str, ...]:
        return (*self.counts, *self.certified, *self.signs)

    def tau(self, context: Context) -> float:
        """The gap, in logits, above which a token is a violation."""
        return min(context.gates.tau_gap, EXACT_TAU_GAP) if context.exact_rows else context.gates.tau_gap

    def increments(self, context: Context, pair: Pair) -> Vector:
        greedy = pair.stratum is Stratum.GREEDY
        found = {"requests": 1.0, "greedy_requests": float(greedy)}
        if greedy and scored(pair):
            candidate, baseline = (gaps > self.tau(context) for gaps in both_rows(pair, "logit_gap"))
            hits, floor_hits = float(candidate.sum()), float(baseline.sum())
            found |= {"positions": float(candidate.size), "violations": hits}
            found |= {"baseline_positions": float(baseline.size), "baseline_violations": floor_hits}
            found |= sign_increments(candidate, baseline)
            if context.calibration is not None:
                seen = (float(candidate.size), hits, 1.0, float(hits > 0))
                found |= dict(zip(self.certified, seen, strict=True))
        return pack(self.names(context), found)

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        sums, gates = Sums(self.names(context), values), context.gates
        gaps = sums["violations"], sums["positions"]
        certified = sums["certified_violations"], sums["certified_positions"]
        requests = sums["violating_requests"], sums["certified_requests"]
        return {
            "greedy_gap": min(rate_above(*gaps, gates.gap_floor), sign_above(sums["only_candidate"], sums["only_baseline"])),
            "gap.below": rate_below(*certified, gates.gap_rate),
            "gap.above": rate_above(*certified, gates.gap_rate),
            "gap.floor": rate_above(sums["baseline_violations"], sums["baseline_positions"], gates.gap_rate),
            "request.below": rate_below(*requests, gates.request_margin),
            "request.above": rate_above(*requests, gates.request_margin),
        }

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        """Both certificates; nothing where the route's greedy requests are too few to be a stratum."""
        greedy = sums["greedy_requests"]
        requests = {Stratum.GREEDY: greedy, Stratum.SAMPLED: sums["requests"] - greedy}
        if Stratum.GREEDY not in tested_strata(requests):
            return []
        gates, log_e = context.gates, self.log_e(context, sums.values)
        floor = {
            "log_floor": reached(sums, log_e, "gap.floor"),
            "floor_hits": sums["baseline_violations"],
            "floor_total": sums["baseline_positions"],
        }
        gap = Claim(
            gate="gap_certificate",
            what=f"tokens more than {self.tau(context):g} logits below the reference's choice",
            rate=gates.gap_rate,
            hits=sums["certified_violations"],
            total=sums["certified_positions"],
            unit="positions",
            log_below=reached(sums, log_e, "gap.below"),
            log_above=reached(sums, log_e, "gap.above"),
            **floor,
        )
        request = Claim(
            gate="request_certificate_greedy",
            what="requests with a token that the reference would not have chosen",
            rate=gates.request_margin,
            hits=sums["violating_requests"],
            total=sums["certified_requests"],
            unit="requests",
            log_below=reached(sums, log_e, "request.below"),
            log_above=reached(sums, log_e, "request.above"),
            **floor,
        )
        return [judge(context, gap), judge(context, request)]
