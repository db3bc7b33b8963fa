"""What the component tests read of their pairs: judged drafts, recovered and bonus tokens, picked out of the trace's columns.

Whether a draft was accepted comes from where the token came from; thresholds come from the rows. It bets on nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from canary.domain.pairs import ALTERNATIVES, DrafterKind, Provenance, Scheme
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

    Where the drafts of a round are judged together, D are the rounds, each seen through its first draft: that one, its uniform
    and the verdict on the round are there whatever was accepted; which later drafts are seen depends on the drafts themselves.

    Args:
        drafts, recoveries, bonuses: how many of each belong to which pair.
        accepted: [D].
        accepted_against_rule: [D] more was accepted than the recorded uniforms and the thresholds of the rows allow.
        rejected_against_rule: [D] less was.
        round_pit: [D] randomised PIT of how many drafts of a round were accepted, given them; nan where judged one by one.
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
    accepted_against_rule: Flags
    rejected_against_rule: Flags
    round_pit: Array
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


def in_effect(kind: DrafterKind, scheme: Scheme) -> Scheme:
    """How drafts of a kind are judged: one-hot ones token by token under block verification too, since there it is the same."""
    return Scheme.TOKEN if scheme is Scheme.BLOCK and kind is DrafterKind.ONE_HOT else scheme


def judged_of(traces: Table, kind: DrafterKind, scheme: Scheme = Scheme.TOKEN) -> Judged:
    """Pick the columns apart.

    Args:
        traces: of sampled pairs that are well formed.
        scheme: how their drafts were judged.

    Raises:
        UsageError: a column is missing or of the wrong size.
    """
    column, tokens = traces.column, traces.tokens
    provenance, ratios = column("provenance"), column("log_ratio")
    block = in_effect(kind, scheme) is Scheme.BLOCK
    drafted, drafts = tokens.select(first_of_round(traces) if block else column("drafted") == 1)
    recovered, recoveries = tokens.select(provenance == Provenance.RECOVERED)
    bonus, bonuses = tokens.select(provenance == Provenance.BONUS)
    uniform = column("accept_uniform")[drafted]
    previous = np.concatenate([[0.5], uniform])[: len(uniform)]
    previous[drafts.offset == 0] = 0.5
    accepted, threshold = provenance[drafted] == Provenance.ACCEPTED, column("accept_threshold")[drafted]
    over, under = accepted & (uniform > threshold + ROUNDING), ~accepted & (uniform < threshold - ROUNDING)
    round_pit, against_draft = np.full(len(drafted), np.nan), ratios[recovered, _DRAFT]
    if block:
        done, rule = column("block_accepted")[drafted], column("block_rule")[drafted]
        over, under, round_pit = done > rule, done < rule, column("block_pit")[drafted]
        against_draft = against_draft - np.log(column("block_weight")[recovered])
    return Judged(
        drafts=drafts,
        recoveries=recoveries,
        bonuses=bonuses,
        accepted=accepted,
        accepted_against_rule=over,
        rejected_against_rule=under,
        round_pit=round_pit,
        threshold=threshold,
        uniform=uniform,
        previous_uniform=previous,
        draft_pit=column("draft_pit")[drafted],
        draft_mid=column("draft_mid")[drafted],
        residual=column("residual_log_ratio")[recovered],
        residual_pit=column("residual_pit")[recovered],
        impossible=impossible(against_draft, kind),
        bonus=np.concatenate([column("bonus_log_ratio")[bonus, None], ratios[bonus][:, _FROM_BANK]], axis=1),
        bonus_pit=column("pit_id")[bonus],
    )


def first_of_round(traces: Table) -> Flags:
    """The first positions of rounds with drafts that were judged together, [tokens]."""
    return np.asarray((traces.column("position_in_round") == 0) & (traces.column("block_rule") >= 0))


def impossible(draft_log_ratio: Array, kind: DrafterKind) -> Flags:
    """Which recovered tokens no residual can give: a dense draft prefers them by over a quarter, a one-hot draft is the token.

    Args:
        draft_log_ratio: log q(x)/p(x) of recovered tokens, any shape; of rounds judged together log q(x)/(w p(x)).
    """
    return np.asarray(draft_log_ratio > (SEEN if kind is DrafterKind.ONE_HOT else IMPOSSIBLE_LOG_RATIO))
