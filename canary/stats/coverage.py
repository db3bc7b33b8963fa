"""What a certificate is about: how many requests and tokens, how informative, how long (statistics 0b.2, 0b.8).

Counts only; it never decides whether a gate passes beyond saying that there is too little to look at.
"""

from __future__ import annotations

import numpy as np

from canary.domain.pairs import Pair
from canary.domain.traffic import Stratum
from canary.stats.bets import INFORMATIVE, column, sampled_trace
from canary.stats.part import Context, Sums, Vector

REACHES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # answers of at least so many tokens

NAMES = (
    "greedy_pairs",
    "sampled_pairs",  # calibrating ones and failed arms included
    "requests",  # of those, requests that certificates count
    "tokens",
    "informative",
    "drafted",
    *(f"reach_{n}" for n in REACHES),
)


def increments(context: Context, pair: Pair) -> Vector:
    """One pair's counts, in the order of `NAMES`."""
    counts = np.zeros(len(NAMES))
    counts[list(Stratum).index(pair.stratum)] = 1
    if pair.stratum is not Stratum.SAMPLED:
        return counts
    trace = sampled_trace(pair)
    if trace is None or context.calibration is None:
        return counts
    informative = float(np.sum(1.0 - column(trace, "max_prob") > INFORMATIVE))
    drafted = float(column(trace, "drafted").sum())
    reached = [float(trace.num_tokens >= n) for n in REACHES]
    counts[2:] = [1, trace.num_tokens, informative, drafted, *reached]
    return counts


def strata(sums: Sums) -> dict[Stratum, float]:
    """Folded pairs of each stratum."""
    return {stratum: sums[f"{stratum}_pairs"] for stratum in Stratum}


def details(sums: Sums) -> dict[str, object]:
    """The coverage that is printed on a certificate; plain JSON values."""
    reached = [n for n in REACHES if sums[f"reach_{n}"] > 0]
    longest = reached[-1] if reached else 0
    return {
        "strata": ["sampled"],
        "requests": int(sums["requests"]),
        "tokens": int(sums["tokens"]),
        "informative_tokens": int(sums["informative"]),
        "drafted_tokens": int(sums["drafted"]),
        "positions_up_to_at_least": longest,
        "requests_that_long": int(sums[f"reach_{longest}"]) if longest else 0,
    }
