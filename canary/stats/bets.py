"""The small numerics that every bet shares: grids, bets in logs, and unpacking of per-token columns.

Nothing here knows a gate or a verdict, and nothing here guesses: a column that is missing or of the wrong size raises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import is_
from typing import cast

import numpy as np
from numpy.typing import NDArray

from canary.domain.errors import UsageError
from canary.domain.pairs import ALTERNATIVES, ROW_COLUMNS, TRACE_COLUMNS, Columns, Generation, Pair
from canary.domain.traffic import Stratum
from canary.stats.products import sum_log

Array = NDArray[np.float64]

LAMBDAS = (0.003, 0.01, 0.03, 0.1, 0.3, 0.9)  # strengths of a bank bet (statistics 3.1)
THETAS = (0.02, 0.06, 0.2, 0.5)  # strengths of a PIT bet (statistics 3.2)
DEGREES = (1, 2, 3, 4)  # Legendre polynomials of the PIT bets
MAX_LOG_RATIO = math.log(1e9)
CLIPPED = MAX_LOG_RATIO - 1e-5  # the trace clips at ln 1e9 and stores float32, so the true ratio may be anything above
BEYOND = 80.0  # stands for a clipped log-ratio where a larger one is the safe side
SEEN = 1e-6  # a log-ratio of this size differs from 0 by more than rounding
KNOWN: Mapping[str, tuple[str, int]] = {**TRACE_COLUMNS, **ROW_COLUMNS}
INFORMATIVE = 0.01  # a token whose row leaves at least this much outside its largest entry


def column(columns: Columns, name: str) -> Array:
    """One packed column as float64.

    Args:
        columns: of a trace (`TRACE_COLUMNS`) or of scored rows (`ROW_COLUMNS`).
        name: the column's name.

    Returns:
        `[num_tokens]`, or `[num_tokens, width]` where the column holds several values per token; not to be written to.

    Raises:
        UsageError: no such column, it is not in the block, or its bytes do not fit `num_tokens`.
    """
    decoded = _decoded(Same(columns))
    if name not in decoded:
        decoded[name] = _decode(columns, name)
    return decoded[name]


class Same:
    """A key that is equal only for the very same objects: what was worked out of a large value is found again without reading it.

    It holds the objects, so that none of their identities can be given to another one meanwhile.
    """

    __slots__ = ("objects",)

    def __init__(self, *objects: object) -> None:
        self.objects = objects

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and all(map(is_, self.objects, other.objects))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.objects)))


@lru_cache(maxsize=8)
def _decoded(block: Same) -> dict[str, Array]:
    """Columns decoded so far of one of the newest blocks: a pair's parts read the same ones again and again."""
    return {}


def _decode(columns: Columns, name: str) -> Array:
    if name not in KNOWN:
        raise UsageError(f"unknown column {name!r}", where=name, remedy=f"Known are {', '.join(KNOWN)}.")
    if name not in columns.data:
        raise UsageError("the column is missing", where=name, remedy="Trace and score the arm again.")
    kind, width = KNOWN[name]
    size = np.dtype(kind).itemsize * width * columns.num_tokens
    if len(columns.data[name]) != size:
        raise UsageError(f"the column has {len(columns.data[name])} bytes, not {size}", where=name, remedy="Trace the arm again.")
    values = np.frombuffer(columns.data[name], dtype=kind).astype(np.float64)
    values.flags.writeable = False
    return values.reshape(columns.num_tokens, width) if width > 1 else values


def sampled_trace(pair: Pair) -> Columns | None:
    """The candidate's trace if the pair can speak about sampling, else None (greedy, failed arm, untraced or empty)."""
    candidate: Generation = pair.candidate
    if pair.stratum is not Stratum.SAMPLED or candidate.error is not None or candidate.trace is None:
        return None
    return candidate.trace if candidate.trace.num_tokens else None


def log_ratios(trace: Columns) -> dict[str, Array]:
    """log a_k(x)/p(x) per alternative of the trace, each `[num_tokens]`."""
    ratios = column(trace, "log_ratio")  # [num_tokens, alternatives]
    return {name: ratios[:, at] for at, name in enumerate(ALTERNATIVES)}


def unigram_log_ratio(token_ids: Sequence[int], log_prob: Array, unigram: Mapping[int, float], floor: float) -> Array:
    """log a(x)/p(x) for the route's unigram.

    Args:
        token_ids: emitted tokens.
        log_prob: log p(x) of each, `[num_tokens]`.
        unigram: log-probability per token id; ids outside it have `floor`.
    """
    log_a = np.array([unigram.get(token, floor) for token in token_ids], dtype=np.float64)
    return log_a - log_prob


def one_sample_distance(log_ratio: Array) -> Array:
    """max(1 - a(x)/p(x), 0), whose mean under x ~ p is TV(p, a): no row is needed to watch a distance on ordinary traffic.

    Args:
        log_ratio: log a(x)/p(x), any shape.
    """
    return np.asarray(-np.expm1(np.minimum(log_ratio, 0.0)))


def log_bets(log_ratio: Array, strengths: Sequence[float] = LAMBDAS, limit: float = MAX_LOG_RATIO) -> Array:
    """Logs of the likelihood-ratio bets 1 + lam * (a(x)/p(x) - 1) (statistics 3.1).

    Args:
        log_ratio: log a(x)/p(x), any shape.
        strengths: lam, each in (0, 1).
        limit: log-ratios above it count as it, which only lowers a bet's expectation.

    Returns:
        `[..., len(strengths)]`. Under x ~ p every bet has mean at most 1, because sum_x a(x) <= 1.
    """
    excess = np.expm1(np.minimum(log_ratio, limit))
    return np.asarray(np.log1p(excess[..., None] * np.asarray(strengths)))


def sum_log_bets(log_ratio: Array, strengths: Sequence[float] = LAMBDAS) -> Array:
    """Sums of `log_bets` over the tokens, within 1e-12.

    Args:
        log_ratio: `[num_tokens, alternatives]`.

    Returns:
        `[alternatives, len(strengths)]`.
    """
    excess = np.expm1(np.minimum(log_ratio, MAX_LOG_RATIO))
    return sum_log(1.0 + excess[..., None] * np.asarray(strengths), MAX_LOG_RATIO)


def sum_log_inverse_bets(log_ratio: Array, strengths: Sequence[float]) -> Array:
    """Sums of `log_inverse_bets` over the tokens, within 1e-12, at one strength for each alternative.

    Args:
        log_ratio: `[num_tokens, alternatives]`.
        strengths: `[alternatives]`.

    Returns:
        `[alternatives]`.
    """
    unclipped = np.where(log_ratio >= CLIPPED, BEYOND, log_ratio)
    excess = np.expm1(np.minimum(unclipped, BEYOND))
    return -sum_log(1.0 + excess * np.asarray(strengths), BEYOND)


def log_inverse_bets(log_ratio: Array, strength: float) -> Array:
    """Logs of 1 / (1 + lam * (a(x)/p(x) - 1)), for certificates: a clipped ratio counts as huge, never as merely 1e9.

    Args:
        log_ratio: log a(x)/p(x), any shape.
        strength: lam in (0, 1).
    """
    unclipped = np.where(log_ratio >= CLIPPED, BEYOND, log_ratio)
    return -log_bets(unclipped, (strength,), BEYOND)[..., 0]


def legendre(u: Array) -> Array:
    """Shifted Legendre polynomials L_1..L_4 of 2u - 1.

    Args:
        u: values in [0, 1], any shape.

    Returns:
        `[..., 4]`, each in [-1, 1]; their means over a uniform u are 0 and their mean squares 1 / (2j + 1).
    """
    x = 2.0 * np.clip(u, 0.0, 1.0) - 1.0
    square = x * x
    return np.stack([x, (3 * square - 1) / 2, (5 * square - 3) * x / 2, (35 * square * square - 30 * square + 3) / 8], axis=-1)


def log_mean_exp(logs: Array, axis: int = -1) -> Array:
    """log of the mean of exp(logs) along an axis, safe for large values."""
    top = np.max(logs, axis=axis, keepdims=True)
    return np.asarray(np.log(np.mean(np.exp(logs - top), axis=axis)) + np.squeeze(top, axis=axis))


def log_weighted_sum(terms: Sequence[tuple[float, float]]) -> float:
    """log of sum w_i exp(log_i) over (weight, log) pairs with positive weights; where the logs are arrays, one for each entry."""
    weights = np.array([weight for weight, _ in terms])
    logs = np.stack([np.asarray(log, dtype=np.float64) for _, log in terms], axis=-1)  # [..., terms]
    top = logs.max(axis=-1, keepdims=True)
    return cast(float, top[..., 0] + np.log((weights * np.exp(logs - top)).sum(axis=-1)))
