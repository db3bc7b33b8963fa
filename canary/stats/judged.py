"""What the component tests read of one pair: judged drafts, recovered and bonus tokens, picked out of the trace's columns.

Whether a draft was accepted comes from where the token came from; thresholds come from the rows. It bets on nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from canary.domain.pairs import ALTERNATIVES, Columns, DrafterKind, Provenance
from canary.stats.bets import SEEN, Array, column

Flags = NDArray[np.bool_]

IMPOSSIBLE_LOG_RATIO = -math.log(0.8)  # p(x) < .8 q(x) (statistics 3.4, RESV); leaves room for the rounding of near ties
ROUNDING = 1e-6  # of thresholds and uniforms stored as float32: closer than this, either verdict is right
BONUS_ALTERNATIVES = ("draft", "hot", "cold", "argmax", "unfiltered", "shift")  # `draft`: the round's last draft row
_FROM_BANK = [ALTERNATIVES.index(name) for name in BONUS_ALTERNATIVES[1:]]
_DRAFT = ALTERNATIVES.index("draft")


@dataclass(frozen=True, slots=True)
class Judged:
    """D judged drafts, R recovered and M bonus tokens of one pair, each in the order of the text.

    Args:
        accepted: [D].
        threshold: [D] min(1, p/q), from the rows.
        uniform: [D] that the draft was judged with.
        previous_uniform: [D] that of the judgement before it; .5 at the first.
        draft_pit, draft_mid: [D] where the draft lies in its own row; nan for one-hot drafts.
        residual: [R, len(TILTS)] log a(x)/res(x).
        residual_pit: [R] randomised PIT in the residual.
        impossible: [R] the residual excludes the token.
        bonus: [M, len(BONUS_ALTERNATIVES)] log a(x)/p(x).
        bonus_pit: [M] randomised PIT in the target row.
    """

    accepted: Flags
    threshold: Array
    uniform: Array
    previous_uniform: Array
    draft_pit: Array
    draft_mid: Array
    residual: Array
    residual_pit: Array
    impossible: Flags
    bonus: Array
    bonus_pit: Array

    @property
    def accepted_against_rule(self) -> int:
        """Drafts that were accepted although their uniform is not below their threshold."""
        return int((self.accepted & (self.uniform > self.threshold + ROUNDING)).sum())

    @property
    def rejected_against_rule(self) -> int:
        """Drafts that were rejected although their uniform is below their threshold."""
        return int((~self.accepted & (self.uniform < self.threshold - ROUNDING)).sum())


def judged_of(trace: Columns, kind: DrafterKind) -> Judged:
    """Pick the columns apart.

    Args:
        trace: of a sampled pair that is well formed.

    Raises:
        UsageError: a column is missing or of the wrong size.
    """
    provenance, ratios = column(trace, "provenance"), column(trace, "log_ratio")
    drafted, recovered, bonus = (column(trace, "drafted") == 1).nonzero()[0], *_places(provenance)
    uniform = column(trace, "accept_uniform")[drafted]
    return Judged(
        accepted=provenance[drafted] == Provenance.ACCEPTED,
        threshold=column(trace, "accept_threshold")[drafted],
        uniform=uniform,
        previous_uniform=np.concatenate([[0.5], uniform])[: len(uniform)],
        draft_pit=column(trace, "draft_pit")[drafted],
        draft_mid=column(trace, "draft_mid")[drafted],
        residual=column(trace, "residual_log_ratio")[recovered],
        residual_pit=column(trace, "residual_pit")[recovered],
        impossible=impossible(ratios[recovered, _DRAFT], kind),
        bonus=np.concatenate([column(trace, "bonus_log_ratio")[bonus, None], ratios[bonus][:, _FROM_BANK]], axis=1),
        bonus_pit=column(trace, "pit_id")[bonus],
    )


def _places(provenance: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where recovered and bonus tokens stand."""
    return (provenance == Provenance.RECOVERED).nonzero()[0], (provenance == Provenance.BONUS).nonzero()[0]


def impossible(draft_log_ratio: Array, kind: DrafterKind) -> Flags:
    """Which recovered tokens no residual can give: a dense draft prefers them by over a quarter, a one-hot draft is the token.

    Args:
        draft_log_ratio: log q(x)/p(x) of recovered tokens, any shape.
    """
    return np.asarray(draft_log_ratio > (SEEN if kind is DrafterKind.ONE_HOT else IMPOSSIBLE_LOG_RATIO))
