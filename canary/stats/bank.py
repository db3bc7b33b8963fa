"""The likelihood-ratio bank: a bet per known fault and strength against "every emitted token is an exact draw" (statistics 3.1).

It is the primary kill test; it sees per-token scalars of the engine's own rows and never a row, a text or a margin.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import cache
from typing import cast

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import ALTERNATIVES, TILTS, DrafterKind, Pair, Provenance, Scheme
from canary.stats.batch import Batch, Together
from canary.stats.bets import LAMBDAS, Array, excess_of, log_mean_exp, sum_log_bets, unigram_log_ratio
from canary.stats.judged import impossible, in_effect
from canary.stats.part import Context, Sums, Vector
from canary.stats.suspects import Diagnosis, diagnose


class Standing(StrEnum):
    """What a test may do for one kind of drafter and one scheme of verification."""

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
# noise shared between draft and recovery changes nothing, and neither does a tilt by the draft; the q/p order is all ties outside
# that token, so its higher degrees and its falling direction repeat the order by id; and a draft that was not drawn from a row
# cannot be compared with one.
STANDING: dict[str, dict[DrafterKind, Standing]] = {
    **dict.fromkeys((*ALTERNATIVES, UNIGRAM, *BONUS), _BOTH),
    "shared_noise": _DENSE,
    **{f"{k}_burst": _BOTH for k in WITHIN},
    "pit_id": _BOTH,
    "pit_ratio": _BOTH,
    "pit_ratio_all_directions": _DENSE,
    **dict.fromkeys(("acc", "acc_over", "acc_under", "acc_uniform", "res", "res_pit", "resv", "bonus"), _BOTH),
    **{f"res_{tilt}": _BOTH for tilt in TILTS},
    **dict.fromkeys(("acc_block", "draft_pit", "acc_uniform_draft", "res_draft_up", "res_shared_noise"), _DENSE),
}

# The schemes other than token and block rejection are lossless too, but accept by another rule and recover from another row; a
# wrong draft row harms none of them. Every position's union, and a bonus draw, follow p under all of them. Under block rejection
# whether a draft is accepted depends on those after it, so that no bet may look at one verdict alone: the round as a whole is
# judged as well, and of its drafts, uniforms and verdicts the first, which is seen whatever comes (docs/adr/0008).
RULE_BOUND = frozenset({"acc", "acc_block", "acc_over", "acc_under", "acc_uniform", "draft_pit", "res", "res_pit", "resv"})
FORBIDDEN: dict[Scheme, frozenset[str]] = {
    Scheme.TOKEN: frozenset({"acc_block"}),
    Scheme.BLOCK: frozenset(),
    **dict.fromkeys((Scheme.GREEDY, Scheme.EXACT_MATCH, Scheme.TREE), RULE_BOUND),
}

RECOVERED = "recovered"
IMPOSSIBLE = "recovered_impossible"  # a recovered token that the residual excludes
COUNTS = (RECOVERED, IMPOSSIBLE)

SINGLES = (*ALTERNATIVES, UNIGRAM, *BONUS)


def standing(test: str, kind: DrafterKind, scheme: Scheme) -> Standing:
    """What a test may do.

    Raises:
        KeyError: there is no such test.
    """
    found = STANDING[test][kind]
    return Standing.FORBIDDEN if found is Standing.ACTIVE and test in FORBIDDEN[in_effect(kind, scheme)] else found


def is_active(test: str, kind: DrafterKind, scheme: Scheme = Scheme.TOKEN) -> bool:
    """Whether a test takes part; the tests of whole positions do so under every scheme."""
    return standing(test, kind, scheme) is Standing.ACTIVE


@cache
def active_singles(kind: DrafterKind) -> tuple[str, ...]:
    """Names of the per-token alternatives in the bank, in their fixed order."""
    return tuple(k for k in SINGLES if is_active(k, kind))


@cache
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
    batch = Batch(context, [pair])
    return dict(zip(active_singles(context.drafter_kind), ratio_table(batch).T, strict=True)) if batch.sampled else None


def ratio_table(batch: Batch) -> Array:
    """`single_ratios` of the sampled pairs' tokens, `[tokens, alternatives]`, in the order of `active_singles`."""
    return batch.once("log_ratios", lambda: _ratio_table(batch))


def excess_table(batch: Batch) -> Array:
    """`bets.excess_of` of the `ratio_table`."""
    return batch.once("excess", lambda: excess_of(ratio_table(batch)))


def _ratio_table(batch: Batch) -> Array:
    traces, record = batch.traces, batch.context.calibration
    table = np.zeros((traces.tokens.size, len(SINGLES)))
    table[:, : len(ALTERNATIVES)] = traces.column("log_ratio")
    if record is not None:
        token_ids = [token for at in batch.sampled for token in batch.pairs[at].candidate.token_ids]
        unigram = unigram_log_ratio(token_ids, traces.column("log_prob"), record.unigram, record.unigram_floor)
        table[:, SINGLES.index(UNIGRAM)] = unigram
    bonus = traces.column("provenance") == Provenance.BONUS
    for copy, name in zip(BONUS, ("hot", "cold"), strict=True):
        table[bonus, SINGLES.index(copy)] = table[bonus, SINGLES.index(name)]
    found: Array = table[:, [SINGLES.index(k) for k in active_singles(batch.context.drafter_kind)]]
    found.flags.writeable = False
    return found


def log_burst(log_likelihood: Array, shares: tuple[float, ...] = BURST_SHARES) -> Array:
    """log(1 - pi + pi * L) per share pi, safe for large log L.

    Args:
        log_likelihood: log of the within-request product L, any shape.

    Returns:
        `[..., len(shares)]`.
    """
    pi = np.asarray(shares)
    return np.asarray(np.logaddexp(np.log1p(-pi), np.log(pi) + log_likelihood[..., None]))


class Bank(Together):
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

    def increments_many(self, batch: Batch) -> Vector:
        """Per pair: sums over its tokens of log e_t(k, lam), and log e_req of its whole-request bets."""
        kind, tokens = batch.context.drafter_kind, batch.traces.tokens
        singles = sum_log_bets(tokens, excess_table(batch))  # [sampled, alternatives, strengths]
        order, at = active_singles(kind), [LAMBDAS.index(lam) for lam in BURST_LAMBDAS]
        within = singles[:, [order.index(k) for k in active_bursts(kind)]][:, :, at]  # [sampled, bursts, 2]
        recovered = batch.traces.column("provenance") == Provenance.RECOVERED
        excluded = recovered & impossible(ratio_table(batch)[:, order.index("draft")], kind)
        counts = tokens.sum(np.stack([recovered, excluded], axis=1))
        blocks = (singles, log_burst(within), counts)
        flat = [block.reshape(len(batch.sampled), math.prod(block.shape[1:])) for block in blocks]
        return batch.spread(np.concatenate(flat, axis=1))

    def _split(self, context: Context, values: Vector) -> tuple[Array, Array]:
        """Log wealths of the per-token alternatives, [..., singles, strengths], and of whole requests, [..., bursts, -1]."""
        singles, bursts = len(active_singles(context.drafter_kind)), len(active_bursts(context.drafter_kind))
        cut, lead = singles * len(LAMBDAS), values.shape[:-1]
        whole = values[..., cut : -len(COUNTS)]
        return values[..., :cut].reshape(*lead, singles, -1), whole.reshape(*lead, bursts, -1)

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
        return {"bank": cast(float, log_mean_exp(np.concatenate(means, axis=-1))[()])}

    def request_weights(self, context: Context) -> Vector:
        """See `part.Watched`: alternatives share evenly, and so do the strengths of each."""
        blocks = [b.shape for b in self._split(context, np.zeros(len(self.names(context))))]
        alternatives = sum(rows for rows, _ in blocks)
        return np.concatenate([np.full(rows * width, 1 / (alternatives * width)) for rows, width in blocks])

    def log_request_bets(self, context: Context, increments: Vector) -> Vector:
        """See `part.Watched`."""
        return increments[:, : -len(COUNTS)]

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        """No gate: wealth is weighed with the other parts' in `losslessness`."""
        return []
