"""Does the candidate answer with something that the route's clients cannot read, where the baseline does not?

It counts words about each arm (valid, invalid, cut, failed) and never sees a text. A cut answer counts for neither side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import Pair
from canary.domain.traffic import Stratum
from canary.stats.bounded import log_mixed
from canary.stats.errors import ERROR_BETS, judge_excess
from canary.stats.part import Context, Sums, Vector
from canary.stats.strata import pack

OUTCOMES = ("only_candidate", "only_baseline", "both_invalid", "both_valid")
COUNTS = (*OUTCOMES, "cut_candidate", "cut_baseline", "agree")


class StructuredValidity:
    """D = candidate invalid - baseline invalid, in {-1, 0, 1}; kills on "the mean of D is above `error_margin`".

    Greedy and sampled answers are strata: each has its e-process, and the gate's is their mean, so that a fault which only one of
    them shows is not thinned out by the other. Whether two valid answers hold the same JSON value (`agree`) is shown and
    decides nothing: under sampling they need not. Gate: `structured_validity` (safety), on structured routes only.

    `log_e`: `structured_validity`.
    """

    name = "structured"
    gate = "structured_validity"

    def names(self, context: Context) -> tuple[str, ...]:
        return tuple(f"{stratum}.{count}" for stratum in Stratum for count in COUNTS)

    def increments(self, context: Context, pair: Pair) -> Vector:
        baseline, candidate = pair.baseline.valid, pair.candidate.valid
        found: dict[str, float] = {}
        for arm, generation in (("baseline", pair.baseline), ("candidate", pair.candidate)):
            other = candidate if arm == "baseline" else baseline
            if generation.valid is None and generation.finish_reason == "length" and generation.error is None:
                found[f"cut_{arm}"] = float(other is not None)
        if baseline is not None and candidate is not None:
            names = {(True, False): "only_candidate", (False, True): "only_baseline", (False, False): "both_invalid"}
            found[names.get((baseline, candidate), "both_valid")] = 1.0
            found["agree"] = float(pair.candidate.agrees is True)
        return pack(self.names(context), {f"{pair.stratum}.{name}": value for name, value in found.items()})

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        sums = Sums(self.names(context), values)
        margin = context.gates.error_margin
        logs = [
            ERROR_BETS.log_e(
                np.asarray(sum(np.multiply.outer(count, ERROR_BETS.above(d, margin, -1.0)) for d, count in _signs(sums, stratum)))
            )
            for stratum in Stratum
        ]
        return {"structured_validity": log_mixed(np.stack(logs, axis=-1), np.full(len(logs), 1 / len(logs)))}

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        return [self._excess(context, sums)] if context.structured else []

    def _excess(self, context: Context, sums: Sums) -> GateEvidence:
        total = {name: sum(sums[f"{stratum}.{name}"] for stratum in Stratum) for name in COUNTS}
        n = sum(total[name] for name in OUTCOMES)
        candidate, baseline = (total[f"only_{arm}"] + total["both_invalid"] for arm in ("candidate", "baseline"))
        found = judge_excess(
            context,
            self.gate,
            _all_signs(total),
            sums,
            self.log_e(context, sums.values),
            found=f"{candidate:.0f} candidate and {baseline:.0f} baseline answers are invalid in {n:.0f} requests",
            failing="invalid_answers",
            details={
                **{name: int(count) for name, count in total.items()},
                "by_stratum": {str(s): {name: int(sums[f"{s}.{name}"]) for name in COUNTS} for s in Stratum},
                "note": context.structured_note,
            },
        )
        return replace(found, sentence=f"{found.sentence} {context.structured_note}".rstrip())


def _signs(sums: Sums, stratum: Stratum) -> tuple[tuple[float, float], ...]:
    """(D, how often) in one stratum."""
    return _all_signs({name: sums[f"{stratum}.{name}"] for name in OUTCOMES})


def _all_signs(counts: Mapping[str, float]) -> tuple[tuple[float, float], ...]:
    same = counts["both_invalid"] + counts["both_valid"]
    return (1.0, counts["only_candidate"]), (-1.0, counts["only_baseline"]), (0.0, same)
