"""Are enough draft tokens accepted? The ratio of accepted to drafted tokens against the policy's floor.

The unit is the request, never the token: tokens of one request are far from independent (statistics 4).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.pairs import DecodeStats
from canary.stats.batch import Batch, Together
from canary.stats.bounded import Bets, log_budget, progress
from canary.stats.part import Context, Sums, Vector
from canary.stats.ratio_of_sums import CAP, RatioMoments, interval
from canary.stats.strata import positions as places
from canary.stats.strata import reached, section

ACCEPTANCE_BETS = Bets.even(0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.95)


class Acceptance(Together):
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

    def increments_many(self, batch: Batch) -> Vector:
        """Counts of every answered request; moments and bets of those that drafted."""
        found = np.zeros((len(batch.pairs), len(self.names(batch.context))))
        answered = [at for at, pair in enumerate(batch.pairs) if pair.candidate.error is None]
        if not answered:
            return found
        stats = [batch.pairs[at].candidate.stats for at in answered]
        counts = np.array(
            [(s.num_accepted_tokens, s.num_draft_tokens, s.num_drafts, s.num_steps) for s in stats], dtype=np.float64
        )
        drafting = counts[:, 1] > 0
        found[answered, 1], found[answered, 5] = ~drafting, counts[:, 3]
        if drafting.any():
            own = [s for s, drafted in zip(stats, drafting, strict=True) if drafted]
            found[np.array(answered)[drafting]] = self._drafted(batch.context, counts[drafting], own)
        return found

    def _drafted(self, context: Context, counts: Vector, stats: Sequence[DecodeStats]) -> Vector:
        """Of requests with drafts, all their increments; counts: accepted, drafted, drafts, steps, [requests, 4]."""
        floor, k = context.gates.acceptance_floor, context.num_speculative_tokens
        accepted, drafted, drafts, steps = counts.T
        scale = np.minimum(1.0, CAP / drafted)
        a, d = accepted * scale, drafted * scale
        x = (a - floor * d) / CAP + floor
        by_round = np.minimum(1.0, CAP / drafts)
        rounds, mean = drafts * by_round, accepted / k * by_round
        per_position = np.array([(*s.accepted_per_position, *[0] * k)[:k] for s in stats], dtype=np.float64).reshape(-1, k)
        at = per_position * by_round[:, None]
        positions = np.stack([per_position, at, at * at, at * rounds[:, None]], axis=2)  # [requests, k, 4]
        columns = (np.ones_like(a), np.zeros_like(a), accepted, drafted, drafts, steps, a, d, a * a, a * d, d * d)
        of_rounds = (rounds, rounds * rounds, mean, mean * mean, mean * rounds)
        bets = (ACCEPTANCE_BETS.above(x, floor, 0.0), ACCEPTANCE_BETS.below(x, floor, 1.0))
        return np.concatenate(
            [np.stack(columns, axis=1), *bets, np.stack(of_rounds, axis=1), positions.reshape(len(a), 4 * k)], axis=1
        )

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


def by_position(context: Context, increments: Vector) -> tuple[NDArray[np.bool_], Vector, Vector]:
    """What single pairs accepted, for `drift`.

    Args:
        increments: of `Acceptance`, [pairs, names].

    Returns:
        (which pairs drafted [pairs]; of those, accepted tokens over k and accepted at each position [drafting, 1 + k]; drafts).
    """
    k, at = context.num_speculative_tokens, places(Acceptance().names(context))
    counts = increments[:, [at["drafts"], at["accepted"], *(at[f"position.{i}"] for i in range(k))]]
    present = counts[:, 0] > 0
    counts = counts[present]
    return present, counts[:, 1:] / np.array([float(k), *([1.0] * k)]), counts[:, 0]


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
