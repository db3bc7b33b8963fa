"""What was planned about a route's traffic against what was counted: the tables of `sample_ratio` that no pair knows.

It makes tables out of counts and judges none; only verdicts read them, never an increment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from canary.domain.mirrored import ENDPOINTS, LENGTH_EDGES, MirrorCount, length_name
from canary.domain.traffic import Stratum
from canary.flow.ports import FoldItem
from canary.stats.shares import Kept, Losses, Split

STREAMS = {True: "streamed", False: "whole"}
OUTCOMES = ("stratum", "length")  # what finished ordinals are counted by

Outcomes = Mapping[str, Mapping[str, Sequence[int]]]  # by stratum and by length: group -> [claimed, lost]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The tables of an assessment.

    Args:
        tables: what can be tested, at most `budget.RATIO_SPLITS` less the two that the pairs themselves know.
        untested: what cannot, each with its reason.
    """

    tables: tuple[Split | Losses | Kept, ...]
    untested: tuple[str, ...]


def traffic(counts: Sequence[MirrorCount], rate: float, outcomes: Outcomes) -> Traffic:
    """The tables that the counts allow.

    Args:
        counts: of the route's window under `rate`.
        rate: the policy's mirror rate.
        outcomes: of the attempt's folded ordinals (`count`).
    """
    mirrored, why_not_mirrored = _mirrored(counts, rate)
    completed, why_not_completed = _completed(outcomes)
    return Traffic((*mirrored, *completed), (*why_not_mirrored, *why_not_completed))


def count(outcomes: Outcomes, items: Iterable[FoldItem]) -> dict[str, dict[str, list[int]]]:
    """The outcomes with further ordinals, A/A ones left out; the given ones stay as they were.

    Lost is an ordinal that is a tombstone or was set aside. They are counted as they are folded, so an ordinal that is not
    finished, and any behind it, counts neither way: an answer that takes long is not lost.
    """
    found = {by: {group: list(pair) for group, pair in outcomes.get(by, {}).items()} for by in OUTCOMES}
    for item in items:
        if item.control or item.stratum is None or item.length is None:
            continue
        for by, group in (("stratum", item.stratum.value), ("length", str(item.length))):
            pair = found[by].setdefault(group, [0, 0])
            pair[0] += 1
            pair[1] += item.increments is None
    return found


def _mirrored(counts: Sequence[MirrorCount], rate: float) -> tuple[list[Split | Kept], tuple[str, ...]]:
    what = "the mirrored share and the mirrored sample against the route's traffic"
    if not 0 < rate < 1:
        return [], (f"{what}: the policy mirrors {'every' if rate >= 1 else 'no'} request, so there is nothing to compare",)
    if not counts:
        return [], (f"{what}: no request was counted at mirror rate {rate:g}",)
    kept, seen = sum(c.kept for c in counts), sum(c.seen for c in counts)
    whole = Split("mirrored requests", {"kept": kept, "left out": seen - kept}, {"kept": rate, "left out": 1 - rate})
    lengths = {length_name(edge): edge for edge in LENGTH_EDGES}
    return [
        whole,
        _kept("mirrored requests by prompt length", counts, rate, lengths, lambda c: c.length),
        _kept("mirrored requests by stream", counts, rate, {name: flag for flag, name in STREAMS.items()}, lambda c: c.stream),
        _kept("mirrored requests by endpoint", counts, rate, {name: name for name in ENDPOINTS}, lambda c: c.endpoint),
    ], ()


def _kept(
    what: str, counts: Sequence[MirrorCount], rate: float, groups: Mapping[str, object], of: Callable[[MirrorCount], object]
) -> Kept:
    seen, kept = (
        {name: sum(getattr(c, field) for c in counts if of(c) == group) for name, group in groups.items()}
        for field in ("seen", "kept")
    )
    return Kept(what, seen, kept, rate)


def _completed(outcomes: Outcomes) -> tuple[list[Losses], tuple[str, ...]]:
    names = {
        "stratum": {stratum.value: stratum.value for stratum in Stratum},
        "length": {str(edge): length_name(edge) for edge in LENGTH_EDGES},
    }
    tables = []
    for by, words in (("stratum", "stratum"), ("length", "prompt length")):
        groups = outcomes.get(by, {})
        named = {name: groups.get(group, (0, 0)) for group, name in names[by].items() if group in groups}
        claimed, lost = ({name: float(pair[at]) for name, pair in named.items()} for at in (0, 1))
        if claimed:
            tables.append(Losses(f"claimed requests by {words}", claimed, lost))
    return tables, () if tables else ("completed against claimed ordinals: none of them has finished yet",)
