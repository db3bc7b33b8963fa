"""The small numerics that every bet shares: grids, bets in logs, and unpacking of per-token columns.

Nothing here knows a gate or a verdict, and nothing here guesses: a column that is missing or of the wrong size raises.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from canary.domain.errors import UsageError
from canary.domain.pairs import ALTERNATIVES, BLOCK_COLUMNS, ROW_COLUMNS, TRACE_COLUMNS, Columns, Generation, Pair
from canary.domain.traffic import Stratum
from canary.stats.ragged import Ragged

Array = NDArray[np.float64]

LAMBDAS = (0.003, 0.01, 0.03, 0.1, 0.3, 0.9)  # strengths of a bank bet (statistics 3.1)
THETAS = (0.02, 0.06, 0.2, 0.5)  # strengths of a PIT bet (statistics 3.2)
DEGREES = (1, 2, 3, 4)  # Legendre polynomials of the PIT bets
MAX_LOG_RATIO = math.log(1e9)
CLIPPED = MAX_LOG_RATIO - 1e-5  # the trace clips at ln 1e9 and stores float32, so the true ratio may be anything above
BEYOND = 80.0  # stands for a clipped log-ratio where a larger one is the safe side
SEEN = 1e-6  # a log-ratio of this size differs from 0 by more than rounding
KNOWN: Mapping[str, tuple[str, int]] = {**TRACE_COLUMNS, **BLOCK_COLUMNS, **ROW_COLUMNS}
INFORMATIVE = 0.01  # a token whose row leaves at least this much outside its largest entry


def column(columns: Columns, name: str) -> Array:
    """One packed column as float64; see `decoded`."""
    return decoded((columns,), name)


def decoded(blocks: Sequence[Columns], name: str) -> Array:
    """One packed column of several generations as float64, one after the other.

    Args:
        blocks: of traces (`TRACE_COLUMNS`) or of scored rows (`ROW_COLUMNS`).
        name: the column's name.

    Returns:
        `[tokens]`, or `[tokens, width]` where the column holds several values per token; not to be written to.

    Raises:
        UsageError: no such column, a block lacks it, or its bytes do not fit its `num_tokens`.
    """
    if name not in KNOWN:
        raise UsageError(f"unknown column {name!r}", where=name, remedy=f"Known are {', '.join(KNOWN)}.")
    kind, width = KNOWN[name]
    values = np.frombuffer(b"".join(_bytes(block, name) for block in blocks), dtype=kind).astype(np.float64)
    values.flags.writeable = False
    return values.reshape(-1, width) if width > 1 else values


def require_columns(block: Columns, names: Iterable[str]) -> None:
    """Whether a block holds these columns.

    Raises:
        UsageError: as `decoded`.
    """
    for name in names:
        _bytes(block, name)


SIZES = {name: np.dtype(kind).itemsize * width for name, (kind, width) in KNOWN.items()}  # bytes per token


def _bytes(block: Columns, name: str) -> bytes:
    found = block.data.get(name)
    if found is None:
        raise UsageError("the column is missing", where=name, remedy="Trace and score the arm again.")
    if len(found) != SIZES[name] * block.num_tokens:
        wanted = SIZES[name] * block.num_tokens
        raise UsageError(f"the column has {len(found)} bytes, not {wanted}", where=name, remedy="Trace the arm again.")
    return found


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


def excess_of(log_ratio: Array) -> Array:
    """a(x)/p(x) - 1 of a bank bet, at most 1e9 - 1; log_ratio of any shape."""
    return np.asarray(np.expm1(np.minimum(log_ratio, MAX_LOG_RATIO)))


def sum_log_bets(tokens: Ragged, excess: Array, strengths: Sequence[float] = LAMBDAS) -> Array:
    """Sums of `log_bets` over the tokens of each pair, within 1e-12.

    Args:
        excess: see `excess_of`, `[tokens, alternatives]`.

    Returns:
        `[pairs, alternatives, len(strengths)]`.
    """
    stakes = np.asarray(strengths)
    return tokens.sum_log(lambda q: 1.0 + q[..., None] * stakes, excess, MAX_LOG_RATIO)


def sum_log_inverse_bets(tokens: Ragged, log_ratio: Array, excess: Array, strengths: Sequence[float]) -> Array:
    """Sums of `log_inverse_bets` over the tokens of each pair, within 1e-12, at one strength for each alternative.

    Args:
        log_ratio: `[tokens, alternatives]`; excess: the same as `excess_of` gives it.
        strengths: `[alternatives]`.

    Returns:
        `[pairs, alternatives]`.
    """
    stakes, unclipped = np.asarray(strengths), np.where(log_ratio >= CLIPPED, math.expm1(BEYOND), excess)
    return -tokens.sum_log(lambda q: 1.0 + q * stakes, unclipped, BEYOND)


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
    found = np.empty((*x.shape, len(DEGREES)))
    found[..., 0], found[..., 1], found[..., 2] = x, (3 * square - 1) / 2, (5 * square - 3) * x / 2
    found[..., 3] = (35 * square * square - 30 * square + 3) / 8
    return found


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
