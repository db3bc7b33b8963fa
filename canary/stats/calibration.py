"""The calibration barrier: what the first ordinals of an attempt fix for the rest of it (statistics 0b.2).

A record is made once, from finished ordinals only, and never changes; every later pair names its hash.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from canary.domain.errors import UsageError
from canary.domain.pairs import ALTERNATIVES, Pair
from canary.domain.traffic import Stratum
from canary.stats import ttft_tail
from canary.stats.bank import UNIGRAM
from canary.stats.bets import SEEN, Array, column, one_sample_distance, sampled_trace, unigram_log_ratio
from canary.stats.part import Calibration, Context

_FIELDS = ("tv", "tv_upper", "unigram", "unigram_floor", "num_requests", "num_ordinals")
STAKES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)  # shares of the largest legal stake, for the upper bound


def upper_bound(values: Array, alpha: float) -> float:
    """Upper confidence bound of a mean in [0, 1] (betting, Waudby-Smith and Ramdas 2010.09686, fixed n).

    Args:
        values: independent observations in [0, 1], `[n]`.
        alpha: probability that the true mean lies above the bound.

    Returns:
        The smallest m at which the mean over stakes of prod(1 + g (m - x) / (1 - m)) reaches 1/alpha; 1 without observations.
        Every factor rises with m, so bisection finds it.
    """

    def log_wealth(m: float) -> float:
        bets = np.log1p(np.asarray(STAKES)[:, None] * np.maximum((m - values) / (1.0 - m), -1 + 1e-12))  # [stakes, n]
        return float(np.logaddexp.reduce(bets.sum(axis=1)) - math.log(len(STAKES)))

    low, high, goal = 0.0, 1.0 - 1e-9, math.log(1 / alpha)
    if not len(values) or log_wealth(high) < goal:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if log_wealth(middle) >= goal else (middle, high)
    return high


def smoothed_unigram(token_ids: Sequence[int], vocab_size: int) -> tuple[dict[int, float], float]:
    """Witten-Bell smoothed log-probabilities: seen tokens by count, the mass of `distinct` more spread over the vocabulary.

    Returns:
        (log-probability per id seen, log-probability of every other id); over the whole vocabulary they sum to 1.
    """
    counts = Counter(token_ids)
    total, distinct = len(token_ids), len(counts)
    if total == 0:
        return {}, -math.log(vocab_size)
    spread = distinct / (total + distinct) / vocab_size
    return {t: math.log(c / (total + distinct) + spread) for t, c in sorted(counts.items())}, math.log(spread)


def calibrate(pairs: Sequence[Pair | None], context: Context) -> Calibration:
    """Measure the strength of every alternative and the route's unigram.

    Args:
        pairs: the first ordinals in order, None for a tombstone; traced with their `tv` column.
        context: of the attempt; its own calibration is ignored.

    Returns:
        Mean TV(p, a_k) per token with an upper bound at `context.alpha` from request means, over the sampled stratum; the unigram
        is built from the baseline's tokens, so that a faulty candidate cannot shape its own test. The unigram's own TV comes from
        answers to the very prompts that it was built from and so is a little small: it is near 1 all the same, and every
        certificate is checked against the TV of the requests that it counts (`certificate_gates.Reach`).

    Raises:
        UsageError: a calibrating pair was traced without distances.
    """
    usable = [p for p in pairs if p is not None and p.error is None and sampled_trace(p) is not None]
    baseline = [p for p in usable if p.baseline.error is None and p.stratum is Stratum.SAMPLED]
    unigram, floor = smoothed_unigram([t for p in baseline for t in p.baseline.token_ids], context.vocab_size)
    rows = [_distances(p, unigram, floor) for p in usable]  # each [num_tokens, alternatives + 1]
    names = (*ALTERNATIVES, UNIGRAM)
    if rows:
        mean = np.concatenate(rows).mean(axis=0)
        per_request = np.clip(np.stack([r.mean(axis=0) for r in rows]), 0.0, 1.0)  # [requests, alternatives + 1]
        upper = [max(upper_bound(per_request[:, at], context.alpha), float(mean[at])) for at in range(len(names))]
    else:
        mean, upper = np.zeros(len(names)), [1.0] * len(names)
    tv, tv_upper = dict(zip(names, map(float, mean), strict=True)), dict(zip(names, upper, strict=True))
    body = _body(tv, tv_upper, unigram, floor, len(rows), len(pairs), ttft_tail.calibrated(context, pairs))
    return from_json({**body, "hash": _digest(body)})


def _distances(pair: Pair, unigram: Mapping[int, float], floor: float) -> Array:
    """TV(p, a_k) of every token's row; the unigram's by its one-sample estimate E_p[(1 - a(x)/p(x))+]."""
    trace = pair.candidate.trace
    assert trace is not None  # `calibrate` looked
    distances = column(trace, "tv")  # [num_tokens, alternatives]
    if not distances.any() and (np.abs(column(trace, "log_ratio")) > SEEN).any():
        raise UsageError(
            f"pair {pair.pair_id} was traced without distances",
            where="trace.tv",
            remedy="Trace calibrating pairs with distances switched on.",
        )
    ratio = unigram_log_ratio(pair.candidate.token_ids, column(trace, "log_prob"), unigram, floor)
    return np.column_stack([distances, one_sample_distance(ratio)])


def _body(
    tv: Mapping[str, float],
    tv_upper: Mapping[str, float],
    unigram: Mapping[int, float],
    floor: float,
    num_requests: int,
    num_ordinals: int,
    ttft_p95: float | None,
) -> dict[str, Any]:
    return {
        "tv": dict(tv),
        "tv_upper": dict(tv_upper),
        "unigram": {str(token): log_prob for token, log_prob in unigram.items()},
        "unigram_floor": floor,
        "num_requests": num_requests,
        "num_ordinals": num_ordinals,
        **({} if ttft_p95 is None else {"ttft_p95": ttft_p95}),
    }


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


def to_json(record: Calibration) -> dict[str, Any]:
    """Plain JSON values; floats survive a round trip through text exactly."""
    counts = record.num_requests, record.num_ordinals
    body = _body(record.tv, record.tv_upper, record.unigram, record.unigram_floor, *counts, record.ttft_p95)
    return {**body, "hash": record.hash}


def from_json(record: Mapping[str, Any]) -> Calibration:
    """The inverse of `to_json`.

    Raises:
        UsageError: a key is missing, or the hash is not that of the contents.
    """
    missing = {*_FIELDS, "hash"} - set(record)
    if missing:
        raise UsageError(f"the record lacks {', '.join(sorted(missing))}", where="calibration", remedy="Open a new attempt.")
    tv, tv_upper, unigram, floor, *counts = (record[name] for name in _FIELDS)
    body = _body(tv, tv_upper, unigram, floor, counts[0], counts[1], record.get("ttft_p95"))
    if _digest(body) != record["hash"]:
        raise UsageError(
            "the record does not match its hash", where="calibration.hash", remedy="It was altered: open a new attempt."
        )
    return Calibration(
        tv=body["tv"],
        tv_upper=body["tv_upper"],
        unigram={int(token): log_prob for token, log_prob in body["unigram"].items()},
        unigram_floor=body["unigram_floor"],
        num_requests=body["num_requests"],
        num_ordinals=body["num_ordinals"],
        hash=record["hash"],
        ttft_p95=body.get("ttft_p95"),
    )
