"""Whether a pair can be believed: a trace that contradicts itself is set aside before any statistic sees it.

It judges form only. A wrong distribution is what the battery is for; nothing here may look at how likely a text is.
"""

from __future__ import annotations

import numpy as np

from canary.domain.errors import CanaryError
from canary.domain.pairs import TRACE_COLUMNS, Columns, DecodeStats, Generation, Pair, Provenance
from canary.domain.traffic import Stratum
from canary.stats.bets import column
from canary.stats.part import Context

ROUNDING = 1e-5  # of float32 log-probabilities and masses
UNIT_COLUMNS = ("max_prob", "pit_id", "pit_ratio", "pit_mid", "tv")


def problem(pair: Pair, context: Context) -> str | None:
    """Why a pair has to be set aside, in words that name the field; None if it may enter the statistics.

    A failed arm is no such reason: it is a finding of its own.
    """
    if pair.error is not None:
        return pair.error
    for generation in (pair.baseline, pair.candidate):
        if generation.error is None and (why := _tokens(generation, context)):
            return f"{generation.arm}: {why}"
    candidate, sampled = pair.candidate, pair.stratum is Stratum.SAMPLED
    if candidate.error is not None or (candidate.trace is None and not sampled):
        return None
    if candidate.trace is None:
        return "candidate: trace is missing"
    why = (_numbers(candidate.trace) if sampled else None) or _rounds(candidate.trace, candidate.stats, context)
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
    for name in ("log_prob", "log_ratio", *UNIT_COLUMNS):
        if np.isnan(columns[name]).any():
            return f"trace: {name} is not a number"
    # Minus infinity is allowed: a token outside the target's support is the strongest evidence there is, not a broken trace.
    if (columns["log_prob"] > ROUNDING).any():
        return f"trace: log_prob {columns['log_prob'].max():.6g} is above 0"
    for name in UNIT_COLUMNS:
        if (columns[name] < -ROUNDING).any() or (columns[name] > 1 + ROUNDING).any():
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
