"""Are enough draft tokens accepted? The ratio of accepted to drafted tokens against the policy's floor.

The unit is the request, never the token: tokens of one request are far from independent (statistics 4).
"""

from __future__ import annotations

import numpy as np

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.pairs import Pair
from canary.stats.bounded import Bets, highest_excluded, log_budget, lowest_excluded, progress
from canary.stats.part import Context, Sums, Vector
from canary.stats.strata import pack, reached, section

MAX_DRAFTED = 128  # a request with more draft tokens is scaled down to so many
ACCEPTANCE_BETS = Bets.even(0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.95)
GRID = np.arange(4, 197) / 200  # nulls of the shown interval; nearer to 0 or 1 no bet of the quadratic bound grows


class Acceptance:
    """Bets on Z = A - floor * D (A accepted of D drafted tokens of a request), with X = Z/128 + floor in [0, 1] (statistics 4).

    Exact bets decide at the floor. The interval needs bets at every rate, whose logs do not add up to anything small; it comes
    from five sums (A, D, A^2, AD, D^2 of the scaled counts) by the quadratic bound of `Bets`, valid at every rate at once.
    Requests without a draft token say nothing about the rate and are counted.
    `log_e`: `acceptance.above`, `acceptance.below`.
    """

    name = "acceptance"
    gate = "acceptance"
    counts = ("requests", "without_drafts", "accepted", "drafted", "drafts", "steps")
    moments = ("a", "d", "aa", "ad", "dd")

    def names(self, context: Context) -> tuple[str, ...]:
        positions = tuple(f"position.{i}" for i in range(context.num_speculative_tokens))
        return (*self.counts, *self.moments, *ACCEPTANCE_BETS.names("above"), *ACCEPTANCE_BETS.names("below"), *positions)

    def increments(self, context: Context, pair: Pair) -> Vector:
        stats, floor = pair.candidate.stats, context.gates.acceptance_floor
        if pair.candidate.error is not None:
            return pack(self.names(context), {})
        drafted, accepted = float(stats.num_draft_tokens), float(stats.num_accepted_tokens)
        if not drafted:
            return pack(self.names(context), {"without_drafts": 1.0, "steps": float(stats.num_steps)})
        scale = min(1.0, MAX_DRAFTED / drafted)
        a, d = accepted * scale, drafted * scale
        x = (a - floor * d) / MAX_DRAFTED + floor
        found = {"requests": 1.0, "accepted": accepted, "drafted": drafted}
        found |= {"drafts": float(stats.num_drafts), "steps": float(stats.num_steps)}
        found |= {"a": a, "d": d, "aa": a * a, "ad": a * d, "dd": d * d}
        found |= dict(zip(ACCEPTANCE_BETS.names("above"), ACCEPTANCE_BETS.above(x, floor, 0.0).tolist(), strict=True))
        found |= dict(zip(ACCEPTANCE_BETS.names("below"), ACCEPTANCE_BETS.below(x, floor, 1.0).tolist(), strict=True))
        asked = range(context.num_speculative_tokens)
        found |= {f"position.{i}": float(n) for i, n in zip(asked, stats.accepted_per_position, strict=False)}
        return pack(self.names(context), found)

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


def _details(context: Context, sums: Sums) -> dict[str, object]:
    drafts = sums["drafts"]
    return {
        "num_drafts": int(drafts),
        "num_draft_tokens": int(sums["drafted"]),
        "num_accepted_tokens": int(sums["accepted"]),
        "capped_acceptance_rate": sums["a"] / sums["d"],
        "mean_accepted_tokens": sums["accepted"] / drafts,
        "acceptance_per_position": [sums[f"position.{i}"] / drafts for i in range(context.num_speculative_tokens)],
        "num_steps": int(sums["steps"]),
        "requests_without_drafts": int(sums["without_drafts"]),
    }


def _interval(sums: Sums, alpha: float) -> tuple[float, float]:
    """Anytime bounds of the acceptance rate, each at alpha, on `GRID`.

    At the null rate t the payoffs are (A - tD) / 128 over t (above) or over 1 - t (below): both at least -1.
    """
    first = (sums["a"] - GRID * sums["d"]) / MAX_DRAFTED
    second = (sums["aa"] - 2 * GRID * sums["ad"] + GRID**2 * sums["dd"]) / MAX_DRAFTED**2
    above = ACCEPTANCE_BETS.quadratic(first / GRID, second / GRID**2) >= log_budget(alpha)
    below = ACCEPTANCE_BETS.quadratic(-first / (1 - GRID), second / (1 - GRID) ** 2) >= log_budget(alpha)
    rate = sums["a"] / sums["d"]
    return min(highest_excluded(GRID, above, 0.0), rate), max(lowest_excluded(GRID, below, 1.0), rate)
