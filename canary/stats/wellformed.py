"""Whether a pair can be believed: a trace that contradicts itself is set aside before any statistic sees it.

It judges form only. A wrong distribution is what the battery is for; nothing here may look at how likely a text is.
"""

from __future__ import annotations

import numpy as np

from canary.domain.errors import CanaryError
from canary.domain.pairs import TRACE_COLUMNS, Columns, Generation, Pair
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
    candidate = pair.candidate
    if pair.stratum is not Stratum.SAMPLED or candidate.error is not None:
        return None
    if candidate.trace is None:
        return "candidate: trace is missing"
    if why := _trace(candidate.trace, len(candidate.token_ids), context):
        return f"candidate: {why}"
    return None


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


def _trace(trace: Columns, num_tokens: int, context: Context) -> str | None:
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
    if (columns["position_in_round"] < 0).any() or (columns["position_in_round"] > context.num_speculative_tokens).any():
        return f"trace: position_in_round is outside 0 to {context.num_speculative_tokens}"
    if (columns["provenance"] > 3).any() or (columns["drafted"] > 1).any():
        return "trace: provenance or drafted is not a known code"
    return None
