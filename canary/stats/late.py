"""Row distances by position bucket, so that what goes wrong late in an answer is not averaged away (statistics 0b.3).

The replay of a tenth of the answers through k = 0 can refute a route, by outliers; its means are shown and never judged, because
in 16 bit two kernels differ by as much as two arms. It certifies nothing: the outlier gate does, on every answer.
"""

from __future__ import annotations

import numpy as np

from canary.stats.batch import Table
from canary.stats.bounded import log_mixed
from canary.stats.part import Context, Sums, Vector
from canary.stats.ragged import Flags, Ragged
from canary.stats.rates import rate_above, rate_upper
from canary.stats.scored import Scored, distances

STARTS = (0, 16, 64, 256)  # first position of each bucket; the last one is open
BUCKETS = ("0-15", "16-63", "64-255", "256+")
EXACT_TAU_ROW = 1e-3  # TV; fp32 rows of any two kernels agree to .00000 (statistics 3.6)
_COUNTS = ("candidate_rows", "candidate_tv", "baseline_rows", "baseline_tv", "replayed_rows", "replayed_tv", "replayed_events")

NAMES = tuple(f"{bucket}.{count}" for count in _COUNTS for bucket in BUCKETS)


def tau(context: Context) -> float:
    """Replay distance from which a row is an outlier."""
    return min(context.gates.tau_row, EXACT_TAU_ROW) if context.exact_rows else context.gates.tau_row


def increments(context: Context, scored: Scored) -> Vector:
    """What every scored pair adds: rows and clipped distances of both arms, and of the replay where there is one.

    Returns:
        [scored, len(NAMES)].

    Raises:
        ValueError: a column is missing or does not fit the text.
    """
    limit, found = context.gates.tau_row, np.zeros((len(scored.places), len(NAMES)))
    width = len(BUCKETS)
    for at, table in enumerate(scored.arms):
        counts = _by_bucket(table.tokens, np.minimum(distances(table, "row_tv"), limit))
        found[:, 2 * at * width : 2 * (at + 1) * width] = counts
    replayed = [at for at, rows in enumerate(scored.candidate.blocks) if "replay_tv" in rows.data]
    if replayed:
        table = Table([scored.candidate.blocks[at] for at in replayed])
        values = distances(table, "replay_tv")
        outliers = _by_bucket(table.tokens, values > tau(context))[:, width:]
        found[replayed, 4 * width :] = np.concatenate([_by_bucket(table.tokens, np.minimum(values, limit)), outliers], axis=1)
    return found


def _by_bucket(tokens: Ragged, values: Vector | Flags) -> Vector:
    """Rows of every bucket, then the sum of its values: [tokens] to [groups, 2 * buckets]."""
    cell = tokens.group * len(BUCKETS) + np.searchsorted(STARTS, tokens.offset, side="right") - 1
    size = len(tokens.lengths) * len(BUCKETS)
    sums = [np.bincount(cell, weights, size).reshape(-1, len(BUCKETS)) for weights in (None, values)]
    return np.concatenate(sums, axis=1)


def log_e(context: Context, sums: Sums, prefix: str) -> float:
    """Log of the mean over buckets of the e-processes against "a replayed row is an outlier at most at the gate's rate".

    Args:
        sums: with `NAMES` behind the prefix.
    """
    each = [
        rate_above(sums[f"{prefix}{b}.replayed_events"], sums[f"{prefix}{b}.replayed_rows"], context.gates.outlier_rate)
        for b in BUCKETS
    ]
    return log_mixed(np.stack(each, axis=-1), np.full(len(BUCKETS), 1 / len(BUCKETS)))


def refuted(context: Context, sums: Sums, prefix: str) -> tuple[str, str]:
    """(reason code, sentence) once `log_e` has crossed; the sentence names the bucket with the largest share of outliers."""
    share = {b: sums[f"{prefix}{b}.replayed_events"] / max(sums[f"{prefix}{b}.replayed_rows"], 1.0) for b in BUCKETS}
    bucket = max(share, key=lambda b: share[b])
    events, rows = sums[f"{prefix}{bucket}.replayed_events"], sums[f"{prefix}{bucket}.replayed_rows"]
    sentence = (
        f"{events:.0f} of {rows:.0f} rows at positions {bucket} are farther than {tau(context):g} from those of k = 0 on the "
        f"same text, proven to be more than {context.gates.outlier_rate:g} of them: speculation leaves something in the cache."
    )
    return "replay_differs", sentence


def details(context: Context, sums: Sums, prefix: str) -> dict[str, object]:
    """What is shown per bucket: mean distances, rows replayed, and the upper bound of the outliers' rate; plain JSON values."""
    shown: dict[str, object] = {}
    for bucket in BUCKETS:
        seen = {name: sums[f"{prefix}{bucket}.{name}"] for name in _COUNTS}
        if not seen["candidate_rows"]:
            continue
        rows, events = seen["replayed_rows"], seen["replayed_events"]
        shown[bucket] = {
            "candidate_distance": seen["candidate_tv"] / seen["candidate_rows"],
            "noise_floor": seen["baseline_tv"] / seen["baseline_rows"] if seen["baseline_rows"] else None,
            "replay_distance": seen["replayed_tv"] / rows if rows else None,
            "replayed_rows": int(rows),
            "replay_outliers": int(events),
            "replay_outlier_rate_below": rate_upper(events, rows, context.alpha) if rows else None,
        }
    return shown
