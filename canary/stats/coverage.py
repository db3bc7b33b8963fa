"""What a certificate is about: how many requests and tokens, how informative, how long (statistics 0b.2, 0b.8).

Counts only; it never decides whether a gate passes beyond saying that there is too little to look at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from canary.domain.pairs import Pair
from canary.domain.traffic import Stratum
from canary.stats.bets import INFORMATIVE, column, sampled_trace
from canary.stats.part import Context, Sums, Vector

# Upper edges of the buckets that temperatures are counted in; sums have no minimum, counts do.
TEMPERATURES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, math.inf)
REACHES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # answers of at least so many tokens
ROUNDING = 1e-6  # of a temperature stored in 32 bit

NAMES = (
    "greedy_pairs",
    "sampled_pairs",  # calibrating ones and failed arms included
    "requests",  # of those, requests that certificates count
    "tokens",
    "informative",
    "drafted",
    *(f"reach_{n}" for n in REACHES),
    *(f"temperature_{edge:g}" for edge in TEMPERATURES),
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
    counts[2:] = [1, trace.num_tokens, informative, drafted, *reached, *_temperature(pair)]
    return counts


def _temperature(pair: Pair) -> list[float]:
    """1 in the bucket of the request's temperature; none where no row was scored, since scored rows carry it."""
    rows = pair.candidate.rows
    if rows is None or not rows.data.get("temperature"):
        return [0.0] * len(TEMPERATURES)
    value = float(column(rows, "temperature")[0])
    bucket = next(at for at, edge in enumerate(TEMPERATURES) if value <= edge + ROUNDING)
    return [float(at == bucket) for at in range(len(TEMPERATURES))]


def strata(sums: Sums) -> dict[Stratum, float]:
    """Folded pairs of each stratum."""
    return {stratum: sums[f"{stratum}_pairs"] for stratum in Stratum}


def temperatures(sums: Sums) -> tuple[float, float | None] | None:
    """The counted requests' temperatures, (above, up to); None where unknown, and as the end beyond the last edge."""
    seen = [at for at, edge in enumerate(TEMPERATURES) if sums[f"temperature_{edge:g}"] > 0]
    if not seen:
        return None
    low, high = (0.0, *TEMPERATURES)[seen[0]], TEMPERATURES[seen[-1]]
    return low, (high if math.isfinite(high) else None)


def longest(sums: Sums) -> int:
    """The largest of `REACHES` that some answer has."""
    return max((n for n in REACHES if sums[f"reach_{n}"] > 0), default=0)


def sentence(sums: Sums, inside: Sequence[str]) -> str:
    """What a certificate is about and what it leaves out, for people.

    Args:
        inside: alternatives that lie inside the margin at full strength.
    """
    between = temperatures(sums)
    if between is None:
        at = "of unknown temperature"
    elif between[1] is None:
        at = f"at temperatures above {between[0]:g}"
    else:
        at = f"at temperatures above {between[0]:g} up to {between[1]:g}"
    words = (
        f"It covers sampled requests {at}, positions up to {longest(sums)} and {sums['informative']:.0f} informative tokens of "
        f"{sums['tokens']:.0f}"
    )
    if inside:
        words += f"; inside the margin even at full strength, and so not excluded: {', '.join(inside)}"
    return words + "."


def details(sums: Sums, inside: Sequence[str]) -> dict[str, object]:
    """The coverage that is printed on a certificate; plain JSON values.

    Args:
        inside: alternatives that lie inside the margin at full strength.
    """
    reach, between = longest(sums), temperatures(sums)
    return {
        "strata": ["sampled"],
        "requests": int(sums["requests"]),
        "tokens": int(sums["tokens"]),
        "informative_tokens": int(sums["informative"]),
        "drafted_tokens": int(sums["drafted"]),
        "positions_up_to_at_least": reach,
        "requests_that_long": int(sums[f"reach_{reach}"]) if reach else 0,
        "temperatures": None if between is None else {"above": between[0], "up_to": between[1]},
        "inside_margin": list(inside),
    }
