"""Whether a pair can be believed: a trace that contradicts itself is set aside before any statistic sees it.

It judges form only. A wrong distribution is what the battery is for; nothing here may look at how likely a text is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from canary.domain.errors import CanaryError
from canary.domain.pairs import TRACE_COLUMNS, Columns, DecodeStats, Generation, Pair, Provenance
from canary.domain.traffic import Stratum
from canary.stats import comparable
from canary.stats.bank import is_active
from canary.stats.bets import Array, column
from canary.stats.part import Context

ROUNDING = 1e-5  # of float32 log-probabilities and masses
MASS_ROUNDING = 1e-3  # of float32 sums over a whole vocabulary
UNIT_COLUMNS = ("max_prob", "pit_id", "pit_ratio", "pit_mid", "tv")


def problem(pair: Pair, context: Context) -> str | None:
    """Why a pair has to be set aside, in words that name the field; None if it may enter the statistics.

    A failed arm is no such reason: it is a finding of its own.
    """
    return pair.error or _arms(pair, context) or comparable.problem(pair)


def _arms(pair: Pair, context: Context) -> str | None:
    """What is wrong with what an arm says about itself."""
    for generation in (pair.baseline, pair.candidate):
        if generation.error is None and (why := _tokens(generation, context)):
            return f"{generation.arm}: {why}"
    candidate, sampled = pair.candidate, pair.stratum is Stratum.SAMPLED
    if candidate.error is not None or (candidate.trace is None and not sampled):
        return None
    if candidate.trace is None:
        return "candidate: trace is missing"
    why = (_numbers(candidate.trace) if sampled else None) or _rounds(candidate.trace, candidate.stats, context)
    why = why or (_judged(candidate.trace, context) if sampled else None)
    return f"candidate: {why}" if why else None


def _tokens(generation: Generation, context: Context) -> str | None:
    if not generation.token_ids:
        return "token_ids are empty"
    low, high = min(generation.token_ids), max(generation.token_ids)
    if low < 0 or high >= context.vocab_size:
        return f"token {low if low < 0 else high} is outside the vocabulary of {context.vocab_size}"
    for name, block in (("trace", generation.trace), ("rows", generation.rows)):
        if block is not None and block.num_tokens != len(generation.token_ids):
            return f"{name} describes {block.num_tokens} tokens, not {len(generation.token_ids)}"
    return None


def _numbers(trace: Columns) -> str | None:
    """What is wrong with the probabilities of a sampled trace."""
    try:
        columns = {name: column(trace, name) for name in TRACE_COLUMNS}
    except CanaryError as error:
        return f"trace: {error}"
    for name in ("log_prob", "log_ratio", "residual_log_ratio", "bonus_log_ratio", *UNIT_COLUMNS):
        if np.isnan(columns[name]).any():
            return f"trace: {name} is not a number"
    # Minus infinity is allowed: a token outside the target's support is the strongest evidence there is, not a broken trace.
    if (columns["log_prob"] > ROUNDING).any():
        return f"trace: log_prob {columns['log_prob'].max():.6g} is above 0"
    for name in UNIT_COLUMNS:
        if (columns[name] < -ROUNDING).any() or (columns[name] > 1 + ROUNDING).any():
            return f"trace: {name} is outside 0 to 1"
    return _masses(columns)


def _masses(columns: Mapping[str, Array]) -> str | None:
    """Where a token's probability does not fit into its row: as of a row that does not sum to 1, or of another row's values."""
    p = np.exp(columns["log_prob"])
    if (p > columns["max_prob"] + MASS_ROUNDING).any():
        return f"trace: a token has more than its row's largest probability, by {(p - columns['max_prob']).max():.3g}"
    below, above = columns["pit_mid"] - p / 2, columns["pit_mid"] + p / 2
    if (below < -MASS_ROUNDING).any() or (above > 1 + MASS_ROUNDING).any():
        return f"trace: a row does not sum to 1, it reaches from {below.min():.4g} to {above.max():.4g}"
    # A token outside the support has no share to be in; that it was emitted at all is evidence and not a broken trace.
    outside = np.where(p > 0, np.maximum(below - columns["pit_id"], columns["pit_id"] - above), 0.0)
    if (outside > MASS_ROUNDING).any():
        return f"trace: pit_id is outside its token's share of the row, by {outside.max():.3g}"
    return None


def _judged(trace: Columns, context: Context) -> str | None:
    """What is missing or impossible where a draft was judged or a token recovered, as far as the component tests read it."""
    drafted, recovered = column(trace, "drafted") == 1, column(trace, "provenance") == Provenance.RECOVERED
    read = {
        "acc": {"accept_threshold": drafted, "accept_uniform": drafted},
        "draft_pit": {"draft_pit": drafted, "draft_mid": drafted},
        "res_pit": {"residual_pit": recovered},
    }
    for test, places in read.items():
        if not is_active(test, context.drafter_kind, context.scheme):
            continue
        for name, where in places.items():
            values = column(trace, name)[where]
            if np.isnan(values).any():
                return f"trace: {name} is not a number where one is needed"
            if (values < -ROUNDING).any() or (values > 1 + ROUNDING).any():
                return f"trace: {name} is outside 0 to 1"
    return None


def _rounds(trace: Columns, stats: DecodeStats, context: Context) -> str | None:
    """Where the trace's account of its rounds contradicts itself or the counts of the loop; greedy traces have one too.

    The two are written in different places (the trace by position, the counts by step), so that a token that was emitted and not
    verified, or verified and not emitted, shows. Only what was cut at the end of the last round may be missing here.
    """
    try:
        position, provenance, drafted = (column(trace, name) for name in ("position_in_round", "provenance", "drafted"))
    except CanaryError as error:
        return f"trace: {error}"
    if (position < 0).any() or (position > context.num_speculative_tokens).any():
        return f"trace: position_in_round is outside 0 to {context.num_speculative_tokens}"
    if (provenance > max(Provenance)).any() or (drafted > 1).any():
        return "trace: provenance or drafted is not a known code"
    accepted = provenance == Provenance.ACCEPTED
    judged = accepted | (provenance == Provenance.RECOVERED)
    num_accepted, most = int(accepted.sum()), stats.num_accepted_tokens
    if not most - stats.num_cut <= num_accepted <= most:
        return f"trace: {num_accepted} tokens are accepted drafts, but the loop accepted {most} and cut {stats.num_cut}"
    if ((drafted == 1) != judged).any():
        return f"trace: {int(drafted.sum())} tokens were drafted, but {int(judged.sum())} were accepted or recovered"
    per_position = np.bincount(position[accepted].astype(np.int64), minlength=context.num_speculative_tokens)
    if (np.diff(per_position) > 0).any():
        return f"trace: acceptance per position rises: {per_position.tolist()}"
    return None
