"""The component tests: the acceptance draw, the drafts, the recovered and the bonus draw, each by itself (statistics 3.4).

They know how the declared scheme works, so they find in tens of tokens what the union of all tokens shows in thousands; where the
scheme is another, or the drafter has no rows, they do not bet at all. They add no gate of their own: `losslessness` weighs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import TILTS, DrafterKind, Scheme
from canary.stats import component_bets as bets
from canary.stats import component_watch
from canary.stats.bank import FORBIDDEN, is_active
from canary.stats.batch import Batch, Together
from canary.stats.bets import LAMBDAS, Array, log_mean_exp
from canary.stats.judged import BONUS_ALTERNATIVES, Judged, in_effect, judged_of
from canary.stats.part import Context, Sums, Vector
from canary.stats.ragged import Flags, Ragged
from canary.stats.rates import rate_above

# A float32 threshold moves a verdict once in 1e7 draws. Thresholds and uniforms are both recorded, so that there is no noise to
# tolerate, and a fault that moves one verdict in a hundred is seen in some hundred drafts.
RULE_NULL = 1e-3
# Rows that are not the verifier's own to the last bit put near ties on the wrong side (statistics 3.4).
IMPOSSIBLE_NULL = 0.005


@dataclass(frozen=True, slots=True)
class Component:
    """One e-process.

    Args:
        entries: names of its sums for a kind of drafter, group by group; each group holds an even share of the wealth.
        increments: what each pair adds to each group of sums, [pairs, group] each, given the PIT sums of `_pit_sums`.
        rate: None for sums of log bets; for counts (hits, chances), the rate that an exact engine may have.
    """

    entries: Callable[[DrafterKind], tuple[tuple[str, ...], ...]]
    increments: Callable[[Judged, DrafterKind, Mapping[str, Array]], tuple[Array, ...]]
    rate: float | None = None


def _tilts(kind: DrafterKind) -> tuple[str, ...]:
    """Tilts of the residual that differ from it for this kind of drafter."""
    return tuple(name for name in TILTS if is_active(f"res_{name}", kind))


def _ties(kind: DrafterKind) -> tuple[str, ...]:
    return ("previous", "draft") if is_active("acc_uniform_draft", kind) else ("previous",)


def _ratio_entries(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}@{lam:g}" for name in names for lam in LAMBDAS)


@cache
def _tilt_places(kind: DrafterKind) -> list[int]:
    return [TILTS.index(name) for name in _tilts(kind)]


def _tie_sums(j: Judged, kind: DrafterKind) -> Array:
    before = {"previous": j.previous_uniform, "draft": j.draft_mid}
    return bets.tie_sums(j.drafts, j.uniform, [before[name] for name in _ties(kind)])


def _hits(groups: Ragged, hits: Flags) -> Array:
    """Hits and chances by pair, [pairs, 2]."""
    return np.stack([groups.sum(hits), groups.lengths.astype(np.float64)], axis=1)


def _pit_sums(j: Judged, active: tuple[str, ...]) -> dict[str, Array]:
    """The PIT sums of the active e-processes, worked out together."""
    values = {
        "acc_block": (j.drafts, j.round_pit),
        "acc_uniform": (j.drafts, j.uniform),
        "draft_pit": (j.drafts, j.draft_pit),
        "res_pit": (j.recoveries, j.residual_pit),
        "bonus": (j.bonuses, j.bonus_pit),
    }
    found = [name for name in values if name in active]
    return dict(zip(found, bets.pit_sums([values[name] for name in found]), strict=True))


def _counted(hits: str, of: str) -> Callable[[DrafterKind], tuple[tuple[str, ...], ...]]:
    return lambda kind: ((hits, of),)


# e-process -> how it is made. That a position is a bonus (every draft before it was accepted) or a rejection is known before its
# token is drawn. The randomised PIT values of one position share their V with the bank's: every e-process is valid by itself, and
# a weighted mean of e-values is one whatever their dependence.
COMPONENTS: dict[str, Component] = {
    "acc": Component(
        lambda kind: bets.ACCEPT_GROUPS,
        lambda j, kind, pits: bets.accept_sums(j.drafts, j.accepted, j.threshold),
    ),
    "acc_block": Component(
        lambda kind: (bets.PIT_NAMES,),
        lambda j, kind, pits: (pits["acc_block"],),
    ),
    "acc_over": Component(
        _counted("accepted_against_rule", "judged"),
        lambda j, kind, pits: (_hits(j.drafts, j.accepted_against_rule),),
        RULE_NULL,
    ),
    "acc_under": Component(
        _counted("rejected_against_rule", "judged"),
        lambda j, kind, pits: (_hits(j.drafts, j.rejected_against_rule),),
        RULE_NULL,
    ),
    "acc_uniform": Component(
        lambda kind: (bets.PIT_NAMES, tuple(f"{name}@{theta:g}" for name in _ties(kind) for theta in bets.TIE_THETAS)),
        lambda j, kind, pits: (pits["acc_uniform"], _tie_sums(j, kind)),
    ),
    "draft_pit": Component(
        lambda kind: (bets.PIT_NAMES,),
        lambda j, kind, pits: (pits["draft_pit"],),
    ),
    "res": Component(
        lambda kind: (_ratio_entries(_tilts(kind)),),
        lambda j, kind, pits: (bets.ratio_sums(j.recoveries, j.residual[:, _tilt_places(kind)]),),
    ),
    "res_pit": Component(
        lambda kind: (bets.PIT_NAMES,),
        lambda j, kind, pits: (pits["res_pit"],),
    ),
    "resv": Component(
        _counted("impossible", "recovered"),
        lambda j, kind, pits: (_hits(j.recoveries, j.impossible),),
        IMPOSSIBLE_NULL,
    ),
    "bonus": Component(
        lambda kind: (_ratio_entries(BONUS_ALTERNATIVES), bets.PIT_NAMES),
        lambda j, kind, pits: (bets.ratio_sums(j.bonuses, j.bonus), pits["bonus"]),
    ),
}

RATES = {name: component.rate for name, component in COMPONENTS.items()}

# Where the drafts of a round are judged together: e-process -> what it leaves out. Which of these are emitted or recovered from
# depends on drafts that come after them, so that none could be bet on by itself.
PARTLY: Mapping[str, str] = {
    "acc": "single verdicts on drafts after a round's first",
    "acc_uniform": "uniforms after a round's first",
    "draft_pit": "drafts after a round's first",
}


@cache
def active_components(kind: DrafterKind, scheme: Scheme) -> tuple[str, ...]:
    """Names of the e-processes that may bet, in their fixed order."""
    return tuple(name for name in COMPONENTS if is_active(name, kind, scheme))


def not_tested(kind: DrafterKind, scheme: Scheme) -> dict[str, str]:
    """What a scheme keeps the component tests from betting on: e-process -> which draws; {} under token rejection."""
    rule = in_effect(kind, scheme)
    if rule in (Scheme.TOKEN, Scheme.BLOCK):
        return dict(PARTLY) if rule is Scheme.BLOCK else {}
    return {name: "all of it" for name in COMPONENTS if name in FORBIDDEN[rule]}


@cache
def _groups(kind: DrafterKind, scheme: Scheme) -> tuple[tuple[str, int, int], ...]:
    """(e-process, start, end) of every group of sums."""
    found, at = [], 0
    for name in active_components(kind, scheme):
        for entries in COMPONENTS[name].entries(kind):
            found.append((name, at, at + len(entries)))
            at += len(entries)
    return tuple(found)


class Components(Together):
    """The component tests of the sampled stratum."""

    name = "components"

    def names(self, context: Context) -> tuple[str, ...]:
        """`e-process.entry`, see `COMPONENTS`."""
        kind = context.drafter_kind
        active = active_components(kind, context.scheme)
        return tuple(f"{name}.{entry}" for name in active for group in COMPONENTS[name].entries(kind) for entry in group)

    def increments_many(self, batch: Batch) -> Vector:
        """Per pair: sums of log bets over its judged, recovered and bonus tokens, and counts."""
        kind, active = batch.context.drafter_kind, active_components(batch.context.drafter_kind, batch.context.scheme)
        if not batch.sampled or not active:
            return np.zeros((len(batch.pairs), len(self.names(batch.context))))
        judged = judged_of(batch.traces, kind, batch.context.scheme)
        pits = _pit_sums(judged, active)
        groups = [group for name in active for group in COMPONENTS[name].increments(judged, kind, pits)]
        return batch.spread(np.concatenate(groups, axis=1, dtype=np.float64))

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        """Every active e-process: the log of the mean over its groups of the mean over their bets, or that of its rate."""
        found: dict[str, list[Array]] = {}
        for name, start, end in _groups(context.drafter_kind, context.scheme):
            found.setdefault(name, []).append(self._group(COMPONENTS[name].rate, values[..., start:end]))
        return {name: logs[0] if len(logs) == 1 else log_mean_exp(np.stack(logs, axis=-1)) for name, logs in found.items()}  # type: ignore[misc]

    @staticmethod
    def _group(rate: float | None, sums: Array) -> Array:
        if rate is None:
            return log_mean_exp(sums)
        return np.asarray(rate_above(sums[..., 0], sums[..., 1], rate))

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        """No gate: wealth is weighed with the other parts' in `losslessness`."""
        return []

    def request_weights(self, context: Context) -> Vector:
        """See `part.Watched`."""
        return component_watch.weights(_groups(context.drafter_kind, context.scheme), RATES)

    def log_request_bets(self, context: Context, increments: Vector) -> Vector:
        """See `part.Watched`."""
        return component_watch.log_bets(_groups(context.drafter_kind, context.scheme), RATES, increments)
