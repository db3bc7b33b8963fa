"""Sample-ratio mismatch: are the pairs that the other gates count still like the route's traffic, and its arms still alike?

A mismatch biases every other test, in a direction that nobody knows; it blocks an advance and says nothing about the candidate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from canary.domain import budget
from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.pairs import Pair
from canary.domain.traffic import Stratum
from canary.stats.bounded import log_budget, progress
from canary.stats.part import Context, Sums, Vector
from canary.stats.shares import Kept, Losses, Split
from canary.stats.strata import pack, reached

Table = Split | Losses | Kept

MIN_REQUESTS = 20
MAX_LOG = 700.0  # of an e-value that is shown; beyond it a float ends


class SampleRatio:
    """Gate `sample_ratio` (harness): passes while no split is proven to be off its plan, at `budget.RATIO_ALPHA` each.

    From pairs: finish reasons (where one arm stops by itself and the other runs into its limit, either is the same fair coin
    if the arms answer alike), and answered requests by stratum (an arm that fails takes its request out of every other test).
    From counts that flow knows when it assesses (`Context.traffic`; `budget.RATIO_SPLITS` tables in all): mirrored against
    planned share, the mirrored sample against the route's traffic, completed against claimed ordinals. Folding never sees them.
    What they cannot tell is named as not tested, with the reason (`Context.untested`).
    `log_e`: `ratio.finish`, `ratio.answered`.
    """

    name = "ratio"
    gate = "sample_ratio"
    counts = ("requests", "candidate_longer", "candidate_shorter")
    by_stratum = tuple(f"{stratum}.{name}" for stratum in Stratum for name in ("requests", "failed"))

    def names(self, context: Context) -> tuple[str, ...]:
        return (*self.counts, *self.by_stratum)

    def increments(self, context: Context, pair: Pair) -> Vector:
        failed = any(g.error is not None or g.finish_reason == "error" for g in (pair.baseline, pair.candidate))
        found = {"requests": 1.0, f"{pair.stratum}.requests": 1.0, f"{pair.stratum}.failed": float(failed)}
        if not failed:
            ends = pair.baseline.finish_reason, pair.candidate.finish_reason
            found["candidate_longer"] = float(ends == ("stop", "length"))
            found["candidate_shorter"] = float(ends == ("length", "stop"))
        return pack(self.names(context), found)

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        sums = Sums(self.names(context), values)
        return {"ratio.finish": _finish(sums).log_e, "ratio.answered": _answered(sums).log_e}

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        now = self.log_e(context, sums.values)
        tables: list[tuple[Table, float]] = [
            (_finish(sums), reached(sums, now, "ratio.finish")),
            (_answered(sums), reached(sums, now, "ratio.answered")),
            *((table, float(table.log_e)) for table in context.traffic),
        ]
        return [judge(int(sums["requests"]), tables, context.untested)]


def judge(requests: int, tables: Sequence[tuple[Table, float]], untested: Sequence[str]) -> GateEvidence:
    """The gate's evidence.

    Args:
        requests: pairs behind it.
        tables: with the largest log that each one's e-process has had.
        untested: what no table is about, each with its reason.
    """
    worst, log_e = max(tables, key=lambda found: found[1])
    if log_e >= log_budget(budget.RATIO_ALPHA):
        sentence = f"{_in_words(worst)}: proven to be off its plan, so the evidence may not be about the traffic."
        found = Verdict.FAIL, "sample_ratio_mismatch", sentence
    elif requests < MIN_REQUESTS:
        sentence = f"{requests} requests have been folded; at least {MIN_REQUESTS} are needed."
        found = Verdict.NO_DATA, "too_few", sentence
    else:
        sentence = f"None of {len(tables)} splits is off its plan; the most unusual: {_in_words(worst)}."
        found = Verdict.PASS, "quiet", " ".join((sentence, *(f"Not tested: {what}." for what in untested)))
    verdict, reason, sentence = found
    return GateEvidence(
        SampleRatio.gate,
        GateRole.HARNESS,
        verdict,
        reason,
        sentence,
        value=math.exp(min(log_e, MAX_LOG)),
        threshold=1 / budget.RATIO_ALPHA,
        n=requests,
        needed=max(0, MIN_REQUESTS - requests) if verdict is Verdict.NO_DATA else None,
        details={
            "splits": {table.what: {**_numbers(table), "progress": progress(e, budget.RATIO_ALPHA)} for table, e in tables},
            "not_tested": list(untested),
        },
    )


def _finish(sums: Sums) -> Split:
    counts = {name: sums[name] for name in ("candidate_longer", "candidate_shorter")}
    return Split("finish reasons of the arms", counts, dict.fromkeys(counts, 0.5))


def _answered(sums: Sums) -> Losses:
    requests, failed = ({str(s): sums[f"{s}.{name}"] for s in Stratum} for name in ("requests", "failed"))
    return Losses("failed arms by stratum", requests, failed)


def _numbers(table: Table) -> dict[str, object]:
    if isinstance(table, Split):
        return {"counts": {g: int(n) for g, n in table.counts.items()}, "planned": dict(table.planned)}
    if isinstance(table, Kept):
        whole, part = ({g: int(n) for g, n in found.items()} for found in (table.seen, table.kept))
        return {"seen": whole, "kept": part, "planned": table.rate}
    return {"claimed": {g: int(n) for g, n in table.claimed.items()}, "lost": {g: int(n) for g, n in table.lost.items()}}


def _in_words(table: Table) -> str:
    """`finish reasons of the arms: candidate_longer 12 of 13 (planned .5), ...`."""
    if isinstance(table, Split):
        total = sum(table.counts.values())
        groups = [f"{g} {n:.0f} of {total:.0f} (planned {table.planned[g]:.3g})" for g, n in table.counts.items()]
    elif isinstance(table, Kept):
        groups = [f"{g} {table.kept[g]:.0f} of {n:.0f} (planned {table.rate:.3g})" for g, n in table.seen.items() if n]
    else:
        groups = [f"{g} {table.lost[g]:.0f} of {n:.0f} lost" for g, n in table.claimed.items()]
    return f"{table.what}: {', '.join(groups)}"
