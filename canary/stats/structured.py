"""Does the candidate answer with something that the route's clients cannot read, where the baseline does not?

It counts words about each arm (valid, invalid, cut, failed) and never sees a text. A cut answer counts for neither side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.pairs import Pair
from canary.domain.traffic import Stratum
from canary.stats.bounded import log_budget, log_mixed, progress
from canary.stats.errors import ERROR_BETS, MIN_REQUESTS, SUSPICIOUS, excess_interval
from canary.stats.part import Context, Sums, Vector
from canary.stats.strata import pack, reached

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
        margin, alpha = context.gates.error_margin, context.error_alpha
        total = {name: sum(sums[f"{stratum}.{name}"] for stratum in Stratum) for name in COUNTS}
        n = sum(total[name] for name in OUTCOMES)
        candidate, baseline = (total[f"only_{arm}"] + total["both_invalid"] for arm in ("candidate", "baseline"))
        log_e = self.log_e(context, sums.values)
        peak = reached(sums, log_e, self.gate)
        facts = f"{candidate:.0f} candidate and {baseline:.0f} baseline answers are invalid in {n:.0f} requests"
        if peak >= log_budget(alpha):
            found = Verdict.FAIL, "invalid_answers", f"{facts}: proven to be more than {margin:g} worse."
        elif n < MIN_REQUESTS:
            found = Verdict.NO_DATA, "too_few", f"{facts}; at least {MIN_REQUESTS} requests are needed."
        elif log_e[self.gate] >= math.log(SUSPICIOUS):
            found = Verdict.INCONCLUSIVE, "suspicious", f"{facts}: nearly proven to be more than {margin:g} worse."
        elif candidate - baseline > margin * n:
            found = Verdict.INCONCLUSIVE, "excess_possible", f"{facts}: an excess above {margin:g}, which is not proven."
        else:
            found = Verdict.PASS, "no_excess", f"{facts}: no sign of an excess above {margin:g}."
        verdict, reason, sentence = found
        low, high = excess_interval(_all_signs(total), alpha) if n else (None, None)
        return GateEvidence(
            self.gate,
            GateRole.SAFETY,
            verdict,
            reason,
            sentence,
            value=(candidate - baseline) / n if n else None,
            low=low,
            high=high,
            threshold=margin,
            n=int(n),
            needed=_needed(verdict, reason, n, (candidate - baseline) / margin),
            progress=min(n / MIN_REQUESTS, 1.0),
            details={
                "e_value_progress": progress(peak, alpha),
                **{name: int(count) for name, count in total.items()},
                "strata": {str(s): {name: int(sums[f"{s}.{name}"]) for name in COUNTS} for s in Stratum},
            },
        )


def _needed(verdict: Verdict, reason: str, n: float, enough: float) -> int | None:
    """Further valid answers until the gate can pass; `enough` is where the excess equals the margin."""
    if verdict in (Verdict.PASS, Verdict.NO_DATA):
        return max(0, MIN_REQUESTS - int(n))
    return math.ceil(enough - n) if reason == "excess_possible" else None


def _signs(sums: Sums, stratum: Stratum) -> tuple[tuple[float, float], ...]:
    """(D, how often) in one stratum."""
    return _all_signs({name: sums[f"{stratum}.{name}"] for name in OUTCOMES})


def _all_signs(counts: Mapping[str, float]) -> tuple[tuple[float, float], ...]:
    same = counts["both_invalid"] + counts["both_valid"]
    return (1.0, counts["only_candidate"]), (-1.0, counts["only_baseline"]), (0.0, same)
