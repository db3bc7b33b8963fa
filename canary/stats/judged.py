"""What the component tests read of their pairs: judged drafts, recovered and bonus tokens, picked out of the trace's columns.

Whether a draft was accepted comes from where the token came from; thresholds come from the rows. It bets on nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from canary.domain.pairs import ALTERNATIVES, DrafterKind, Provenance
from canary.stats.batch import Table
from canary.stats.bets import SEEN, Array
from canary.stats.ragged import Flags, Ragged

IMPOSSIBLE_LOG_RATIO = -math.log(0.8)  # p(x) < .8 q(x) (statistics 3.4, RESV); leaves room for the rounding of near ties
ROUNDING = 1e-6  # of thresholds and uniforms stored as float32: closer than this, either verdict is right
BONUS_ALTERNATIVES = ("draft", "hot", "cold", "argmax", "unfiltered", "shift")  # `draft`: the round's last draft row
_FROM_BANK = [ALTERNATIVES.index(name) for name in BONUS_ALTERNATIVES[1:]]
_DRAFT = ALTERNATIVES.index("draft")


@dataclass(frozen=True, slots=True)
class Judged:
    """D judged drafts, R recovered and M bonus tokens of several pairs, pair after pair, each in the order of its text.

    Args:
        drafts, recoveries, bonuses: how many of each belong to which pair.
        accepted: [D].
        threshold: [D] min(1, p/q), from the rows.
        uniform: [D] that the draft was judged with.
        previous_uniform: [D] that of the pair's judgement before it; .5 at its first.
        draft_pit, draft_mid: [D] where the draft lies in its own row; nan for one-hot drafts.
        residual: [R, len(TILTS)] log a(x)/res(x).
        residual_pit: [R] randomised PIT in the residual.
        impossible: [R] the residual excludes the token.
        bonus: [M, len(BONUS_ALTERNATIVES)] log a(x)/p(x).
        bonus_pit: [M] randomised PIT in the target row.
    """

    drafts: Ragged
    recoveries: Ragged
    bonuses: Ragged
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
    def accepted_against_rule(self) -> Flags:
        """[D] drafts that were accepted although their uniform is not below their threshold."""
        return np.asarray(self.accepted & (self.uniform > self.threshold + ROUNDING))

    @property
    def rejected_against_rule(self) -> Flags:
        """[D] drafts that were rejected although their uniform is below their threshold."""
        return np.asarray(~self.accepted & (self.uniform < self.threshold - ROUNDING))


def judged_of(traces: Table, kind: DrafterKind) -> Judged:
    """Pick the columns apart.

    Args:
        traces: of sampled pairs that are well formed.

    Raises:
        UsageError: a column is missing or of the wrong size.
    """
    column, tokens = traces.column, traces.tokens
    provenance, ratios = column("provenance"), column("log_ratio")
    drafted, drafts = tokens.select(column("drafted") == 1)
    recovered, recoveries = tokens.select(provenance == Provenance.RECOVERED)
    bonus, bonuses = tokens.select(provenance == Provenance.BONUS)
    uniform = column("accept_uniform")[drafted]
    previous = np.concatenate([[0.5], uniform])[: len(uniform)]
    previous[drafts.offset == 0] = 0.5
    return Judged(
        drafts=drafts,
        recoveries=recoveries,
        bonuses=bonuses,
        accepted=provenance[drafted] == Provenance.ACCEPTED,
        threshold=column("accept_threshold")[drafted],
        uniform=uniform,
        previous_uniform=previous,
        draft_pit=column("draft_pit")[drafted],
        draft_mid=column("draft_mid")[drafted],
        residual=column("residual_log_ratio")[recovered],
        residual_pit=column("residual_pit")[recovered],
        impossible=impossible(ratios[recovered, _DRAFT], kind),
        bonus=np.concatenate([column("bonus_log_ratio")[bonus, None], ratios[bonus][:, _FROM_BANK]], axis=1),
        bonus_pit=column("pit_id")[bonus],
    )


def impossible(draft_log_ratio: Array, kind: DrafterKind) -> Flags:
    """Which recovered tokens no residual can give: a dense draft prefers them by over a quarter, a one-hot draft is the token.

    Args:
        draft_log_ratio: log q(x)/p(x) of recovered tokens, any shape.
    """
    return np.asarray(draft_log_ratio > (SEEN if kind is DrafterKind.ONE_HOT else IMPOSSIBLE_LOG_RATIO))
