"""What a certificate is about: how many requests and tokens, how informative, how long (statistics 0b.2, 0b.8).

Counts only; it never decides whether a gate passes beyond saying that there is too little to look at.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from canary.domain.pairs import Pair
from canary.domain.traffic import Stratum
from canary.stats.batch import Batch
from canary.stats.bets import INFORMATIVE
from canary.stats.part import Sums, Vector

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


_FIRST_REACH = NAMES.index(f"reach_{REACHES[0]}")
_FIRST_TEMPERATURE = NAMES.index(f"temperature_{TEMPERATURES[0]:g}")


def increments(batch: Batch) -> Vector:
    """Each pair's counts, [pairs, len(NAMES)]."""
    counts = np.zeros((len(batch.pairs), len(NAMES)))
    sampled = np.array([pair.stratum is Stratum.SAMPLED for pair in batch.pairs])
    counts[:, 0], counts[:, 1] = ~sampled, sampled
    if batch.context.calibration is None or not batch.sampled:
        return counts
    traces, found = batch.traces, np.zeros((len(batch.sampled), len(NAMES)))
    informative = traces.tokens.sum(1.0 - traces.column("max_prob") > INFORMATIVE)
    drafted = traces.tokens.sum(traces.column("drafted"))
    found[:, 2:_FIRST_REACH] = np.stack([np.ones_like(drafted), traces.tokens.lengths, informative, drafted], axis=1)
    found[:, _FIRST_REACH:_FIRST_TEMPERATURE] = traces.tokens.lengths[:, None] >= np.asarray(REACHES)
    for row, at in enumerate(batch.sampled):
        if (bucket := _temperature(batch.pairs[at])) is not None:
            found[row, _FIRST_TEMPERATURE + bucket] = 1.0
    return counts + batch.spread(found)


def _temperature(pair: Pair) -> int | None:
    """Which bucket the request's temperature is in; None where no row was scored, since scored rows carry it."""
    rows = pair.candidate.rows
    if rows is None or not (block := rows.data.get("temperature")):
        return None
    (value,) = struct.unpack_from("<f", block)
    return bisect_left(TEMPERATURES, value - ROUNDING)


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
