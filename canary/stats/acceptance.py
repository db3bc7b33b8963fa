"""Are enough draft tokens accepted? The ratio of accepted to drafted tokens against the policy's floor.

The unit is the request, never the token: tokens of one request are far from independent (statistics 4).
"""

from __future__ import annotations

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.pairs import DecodeStats, Pair
from canary.stats.bounded import Bets, log_budget, progress
from canary.stats.part import Context, Sums, Vector
from canary.stats.ratio_of_sums import CAP, RatioMoments, interval, scale_of
from canary.stats.strata import pack, reached, section

ACCEPTANCE_BETS = Bets.even(0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.95)


class Acceptance:
    """Bets on Z = A - floor * D (A accepted of D drafted tokens of a request), with X = Z/128 + floor in [0, 1] (statistics 4).

    Exact bets decide at the floor. The interval needs bets at every rate, whose logs do not add up to anything small; it comes
    from five sums (A, D, A^2, AD, D^2 of the scaled counts) by the quadratic bound of `Bets`, valid at every rate at once; so do
    those of each position (accepted there, by drafts) and of the mean accepted tokens (accepted by drafts, over k). Those are
    shown, each bound at the gate's alpha, and decide nothing.
    Requests without a draft token say nothing about the rate and are counted.
    `log_e`: `acceptance.above`, `acceptance.below`.
    """

    name = "acceptance"
    gate = "acceptance"
    counts = ("requests", "without_drafts", "accepted", "drafted", "drafts", "steps")
    moments = ("a", "d", "aa", "ad", "dd")
    rounds = ("rounds.d", "rounds.dd", "rounds.a", "rounds.aa", "rounds.ad")

    def names(self, context: Context) -> tuple[str, ...]:
        positions = range(context.num_speculative_tokens)
        bets = (*ACCEPTANCE_BETS.names("above"), *ACCEPTANCE_BETS.names("below"))
        of_positions = (f"position.{i}{part}" for i in positions for part in ("", ".a", ".aa", ".ad"))
        return (*self.counts, *self.moments, *bets, *self.rounds, *of_positions)

    def increments(self, context: Context, pair: Pair) -> Vector:
        stats, floor = pair.candidate.stats, context.gates.acceptance_floor
        if pair.candidate.error is not None:
            return pack(self.names(context), {})
        drafted, accepted = float(stats.num_draft_tokens), float(stats.num_accepted_tokens)
        if not drafted:
            return pack(self.names(context), {"without_drafts": 1.0, "steps": float(stats.num_steps)})
        scale = scale_of(drafted)
        a, d = accepted * scale, drafted * scale
        x = (a - floor * d) / CAP + floor
        found = {"requests": 1.0, "accepted": accepted, "drafted": drafted}
        found |= {"drafts": float(stats.num_drafts), "steps": float(stats.num_steps)}
        found |= {"a": a, "d": d, "aa": a * a, "ad": a * d, "dd": d * d}
        found |= dict(zip(ACCEPTANCE_BETS.names("above"), ACCEPTANCE_BETS.above(x, floor, 0.0).tolist(), strict=True))
        found |= dict(zip(ACCEPTANCE_BETS.names("below"), ACCEPTANCE_BETS.below(x, floor, 1.0).tolist(), strict=True))
        return pack(self.names(context), found | _by_round(context.num_speculative_tokens, stats))

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        sums = Sums(self.names(context), values)
        return {
            f"acceptance.{side}": ACCEPTANCE_BETS.log_e(section(sums, ACCEPTANCE_BETS.names(side))) for side in ("above", "below")
        }

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        floor, n, budget = context.gates.acceptance_floor, sums["requests"], log_budget(context.alpha)
        if not n:
            return [self._no_drafts(sums["without_drafts"], floor)]
        log_e = self.log_e(context, sums.values)
        above, below = (reached(sums, log_e, f"acceptance.{side}") for side in ("above", "below"))
        rate = sums["accepted"] / sums["drafted"]
        low, high = _interval(sums, context.alpha)
        needed = ACCEPTANCE_BETS.needed(section(sums, ACCEPTANCE_BETS.names("above")), n, context.alpha)
        facts = f"{rate:.3f} of the draft tokens were accepted over {n:.0f} requests"
        if below >= budget and not (above >= budget and log_e["acceptance.above"] > log_e["acceptance.below"]):
            verdict, reason, needed = Verdict.FAIL, "below_floor", None
            sentence, high = f"{facts}, proven to be below the floor of {floor:g}.", min(high, floor)
        elif above >= budget:
            verdict, reason, needed = Verdict.PASS, "above_floor", 0
            sentence, low = f"{facts}, proven to be above the floor of {floor:g}.", max(low, floor)
        else:
            verdict, reason = Verdict.INCONCLUSIVE, "not_yet"
            tail = f"about {needed} more requests are needed" if needed is not None else "the evidence is not growing"
            sentence = f"{facts}, not yet proven to be above the floor of {floor:g}: {tail}."
        return [
            GateEvidence(
                self.gate,
                GateRole.ECONOMY,
                verdict,
                reason,
                sentence,
                value=rate,
                low=low,
                high=high,
                threshold=floor,
                n=int(n),
                needed=needed,
                progress=progress(above, context.alpha),
                details=_details(context, sums),
            )
        ]

    def _no_drafts(self, without: float, floor: float) -> GateEvidence:
        reason = "no_drafts" if without else "no_data"
        sentence = f"The drafter proposed no token in {without:.0f} requests." if without else "No request has been run yet."
        details = {"requests_without_drafts": int(without)}
        return GateEvidence(
            self.gate, GateRole.ECONOMY, Verdict.NO_DATA, reason, sentence, threshold=floor, progress=0.0, details=details
        )


def _by_round(k: int, stats: DecodeStats) -> dict[str, float]:
    """What one request adds per draft: accepted tokens over k, and accepted at each position, both scaled to `CAP` drafts."""
    scale = scale_of(float(stats.num_drafts))
    d, a = stats.num_drafts * scale, stats.num_accepted_tokens / k * scale
    found = {"rounds.d": d, "rounds.dd": d * d, "rounds.a": a, "rounds.aa": a * a, "rounds.ad": a * d}
    for i, accepted in zip(range(k), stats.accepted_per_position, strict=False):
        at = accepted * scale
        found[f"position.{i}"] = float(accepted)
        found |= {f"position.{i}.a": at, f"position.{i}.aa": at * at, f"position.{i}.ad": at * d}
    return found


def _details(context: Context, sums: Sums) -> dict[str, object]:
    drafts, k = sums["drafts"], context.num_speculative_tokens
    d, dd = sums["rounds.d"], sums["rounds.dd"]
    positions = [
        RatioMoments(sums[f"position.{i}.a"], d, sums[f"position.{i}.aa"], sums[f"position.{i}.ad"], dd) for i in range(k)
    ]
    accepted = RatioMoments(sums["rounds.a"], d, sums["rounds.aa"], sums["rounds.ad"], dd)
    return {
        "num_drafts": int(drafts),
        "num_draft_tokens": int(sums["drafted"]),
        "num_accepted_tokens": int(sums["accepted"]),
        "capped_acceptance_rate": sums["a"] / sums["d"],
        "mean_accepted_tokens": sums["accepted"] / drafts,
        "mean_accepted_tokens_interval": [k * bound for bound in interval(accepted, context.alpha)],
        "acceptance_per_position": [sums[f"position.{i}"] / drafts for i in range(k)],
        "acceptance_per_position_interval": [list(interval(p, context.alpha)) for p in positions],
        "num_steps": int(sums["steps"]),
        "requests_without_drafts": int(sums["without_drafts"]),
    }


def _interval(sums: Sums, alpha: float) -> tuple[float, float]:
    """Anytime bounds of the acceptance rate, each at alpha."""
    return interval(RatioMoments(*(sums[name] for name in Acceptance.moments)), alpha)
