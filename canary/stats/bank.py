"""The likelihood-ratio bank: a bet per known fault and strength against "every emitted token is an exact draw" (statistics 3.1).

It is the primary kill test; it sees per-token scalars of the engine's own rows and never a row, a text or a margin.
"""

from __future__ import annotations

import math
from enum import StrEnum

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import ALTERNATIVES, DrafterKind, Pair, Provenance
from canary.stats.bets import LAMBDAS, Array, column, log_bets, log_mean_exp, log_ratios, sampled_trace, unigram_log_ratio
from canary.stats.part import Context, Sums, Vector
from canary.stats.suspects import Diagnosis, diagnose


class Standing(StrEnum):
    """What a test may do for one kind of drafter."""

    ACTIVE = "active"
    INERT = "inert"  # it can say nothing: its alternative equals the target
    FORBIDDEN = "forbidden"  # it would reject an exact engine


UNIGRAM = "unigram"
BONUS = ("bonus_hot", "bonus_cold")  # copies of hot and cold at bonus positions, which are known before the draw
WITHIN = ("draft", UNIGRAM, "shift")  # alternatives that may take over whole requests
BURST_LAMBDAS = (0.3, 0.9)
BURST_SHARES = (0.003, 0.01, 0.05)  # pi: share of requests that the alternative took over

_BOTH = {DrafterKind.DENSE: Standing.ACTIVE, DrafterKind.ONE_HOT: Standing.ACTIVE}
_DENSE = {DrafterKind.DENSE: Standing.ACTIVE, DrafterKind.ONE_HOT: Standing.INERT}

# test -> drafter kind -> standing (statistics 0b.6). With one-hot drafts the residual is the target without the drafted token, so
# noise shared between draft and recovery changes nothing; the q/p order is all ties outside that token, so its higher degrees and
# its falling direction repeat the order by id.
STANDING: dict[str, dict[DrafterKind, Standing]] = {
    **dict.fromkeys((*ALTERNATIVES, UNIGRAM, *BONUS), _BOTH),
    "shared_noise": _DENSE,
    **{f"{k}_burst": _BOTH for k in WITHIN},
    "pit_id": _BOTH,
    "pit_ratio": _BOTH,
    "pit_ratio_all_directions": _DENSE,
}

RECOVERED = "recovered"
IMPOSSIBLE = "recovered_impossible"  # a recovered token that the draft prefers by over a quarter: the residual has none
COUNTS = (RECOVERED, IMPOSSIBLE)
IMPOSSIBLE_LOG_RATIO = -math.log(0.8)  # p(x) < .8 q(x) (statistics 3.4, RESV); leaves room for the rounding of near ties

SINGLES = (*ALTERNATIVES, UNIGRAM, *BONUS)


def is_active(test: str, kind: DrafterKind) -> bool:
    """Whether a test takes part for this kind of drafter."""
    return STANDING[test][kind] is Standing.ACTIVE


def active_singles(kind: DrafterKind) -> tuple[str, ...]:
    """Names of the per-token alternatives in the bank, in their fixed order."""
    return tuple(k for k in SINGLES if is_active(k, kind))


def active_bursts(kind: DrafterKind) -> tuple[str, ...]:
    """Names of the alternatives that have whole-request bets, in their fixed order."""
    return tuple(k for k in WITHIN if is_active(f"{k}_burst", kind))


def single_ratios(context: Context, pair: Pair) -> dict[str, Array] | None:
    """log a_k(x)/p(x) of every per-token alternative.

    Args:
        pair: one pair.

    Returns:
        name -> `[num_tokens]`, or None where the pair says nothing about sampling. 0 stands where the alternative is inert: the
        unigram before calibration, the bonus copies off bonus positions.
    """
    trace = sampled_trace(pair)
    if trace is None:
        return None
    ratios = log_ratios(trace)
    if context.calibration is None:
        ratios[UNIGRAM] = np.zeros(trace.num_tokens)
    else:
        record = context.calibration
        log_prob = column(trace, "log_prob")
        ratios[UNIGRAM] = unigram_log_ratio(pair.candidate.token_ids, log_prob, record.unigram, record.unigram_floor)
    bonus = column(trace, "provenance") == Provenance.BONUS
    ratios["bonus_hot"] = np.where(bonus, ratios["hot"], 0.0)
    ratios["bonus_cold"] = np.where(bonus, ratios["cold"], 0.0)
    return {k: ratios[k] for k in active_singles(context.drafter_kind)}


def log_burst(log_likelihood: Array, shares: tuple[float, ...] = BURST_SHARES) -> Array:
    """log(1 - pi + pi * L) per share pi, safe for large log L.

    Args:
        log_likelihood: log of the within-request product L, any shape.

    Returns:
        `[..., len(shares)]`.
    """
    pi = np.asarray(shares)
    return np.asarray(np.logaddexp(np.log1p(-pi), np.log(pi) + log_likelihood[..., None]))


class Bank:
    """Bets of the sampled stratum; adds no gate of its own, `losslessness` reads its wealth."""

    name = "bank"

    def names(self, context: Context) -> tuple[str, ...]:
        """`k@lam` for every alternative and strength, `k_burst@lam/pi` for whole requests, and two counts for the diagnosis."""
        singles = [f"{k}@{lam:g}" for k in active_singles(context.drafter_kind) for lam in LAMBDAS]
        bursts = [
            f"{k}_burst@{lam:g}/{pi:g}"
            for k in active_bursts(context.drafter_kind)
            for lam in BURST_LAMBDAS
            for pi in BURST_SHARES
        ]
        return (*singles, *bursts, *COUNTS)

    def increments(self, context: Context, pair: Pair) -> Vector:
        """Per pair: sums over its tokens of log e_t(k, lam), and log e_req of its whole-request bets."""
        ratios = single_ratios(context, pair)
        if ratios is None:
            return np.zeros(len(self.names(context)))
        stacked = np.stack(list(ratios.values()))  # [alternatives, num_tokens]
        singles = log_bets(stacked).sum(axis=1)  # [alternatives, strengths]
        at = [LAMBDAS.index(lam) for lam in BURST_LAMBDAS]
        order = list(ratios)
        within = singles[[order.index(k) for k in active_bursts(context.drafter_kind)]][:, at]  # [bursts, 2]
        return np.concatenate([singles.ravel(), log_burst(within).ravel(), self._recovered(pair, ratios["draft"])])

    @staticmethod
    def _recovered(pair: Pair, draft_ratio: Array) -> Array:
        """How many recovered tokens there are, and how many of them no residual can give."""
        trace = pair.candidate.trace
        assert trace is not None  # it has ratios
        recovered = column(trace, "provenance") == Provenance.RECOVERED
        return np.array([recovered.sum(), (recovered & (draft_ratio > IMPOSSIBLE_LOG_RATIO)).sum()], dtype=np.float64)

    def _split(self, context: Context, values: Vector) -> tuple[Array, Array]:
        """Log wealths of the per-token alternatives, [singles, strengths], and of whole requests, [bursts, lam x pi]."""
        singles, bursts = len(active_singles(context.drafter_kind)), len(active_bursts(context.drafter_kind))
        cut = singles * len(LAMBDAS)
        return values[:cut].reshape(singles, -1), values[cut : -len(COUNTS)].reshape(bursts, -1)

    def entries(self, context: Context, values: Vector) -> dict[str, Array]:
        """The sums again, by alternative: name -> its log wealths over strengths (bursts: over lam and pi)."""
        names = (*active_singles(context.drafter_kind), *(f"{k}_burst" for k in active_bursts(context.drafter_kind)))
        return dict(zip(names, (row for block in self._split(context, values) for row in block), strict=True))

    def diagnosis(self, context: Context, sums: Sums) -> Diagnosis:
        """Which alternative explains the sums best."""
        return diagnose(self.entries(context, sums.values), sums[RECOVERED], sums[IMPOSSIBLE])

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        """`bank`: log of the mean over alternatives of the mean over strengths of exp(wealth)."""
        means = [log_mean_exp(block) for block in self._split(context, values)]
        return {"bank": float(log_mean_exp(np.concatenate(means)))}

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        """No gate: wealth is weighed with the other parts' in `losslessness`."""
        return []
