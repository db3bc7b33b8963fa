"""Does the candidate arm fail where the baseline answers?

Counts failed arms of paired requests; tombstones and pairs set aside are the battery's, and must never count against an arm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.pairs import Pair
from canary.stats.bounded import Bets, highest_excluded, log_budget, log_mixture, lowest_excluded, progress
from canary.stats.part import Context, Sums, Vector
from canary.stats.rates import rate_above
from canary.stats.strata import pack, reached

ERROR_BETS = Bets.even(0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.95)
SUSPICIOUS = 20.0  # e-value from which the gate stops to pass (statistics 5)
MIN_REQUESTS = 20
BASELINE_FAILURES = 0.05  # share of failed baseline arms that says that the serving is broken, not the candidate


class Errors:
    """D = candidate failed - baseline failed, in {-1, 0, 1}; kills on "the mean of D is above `error_margin`".

    Gates: `errors` (safety; passes while its e-value is below 20 and the estimate is not above the margin) and `baseline`
    (harness; fails if the baseline itself does).

    `log_e`: `errors` (kill) and `errors.baseline`, against "at most 5 % of the baseline arms fail".
    """

    name = "errors"
    gate = "errors"
    counts = ("requests", "only_candidate", "only_baseline", "both_failed", "both_answered")
    finishes = ("candidate_longer", "candidate_shorter", "finish_differs")

    def names(self, context: Context) -> tuple[str, ...]:
        return (*self.counts, *self.finishes)

    def increments(self, context: Context, pair: Pair) -> Vector:
        candidate, baseline = (g.error is not None or g.finish_reason == "error" for g in (pair.candidate, pair.baseline))
        found = {"requests": 1.0}
        found["only_candidate"] = float(candidate and not baseline)
        found["only_baseline"] = float(baseline and not candidate)
        found["both_failed"] = float(baseline and candidate)
        if not candidate and not baseline:
            ends = pair.baseline.finish_reason, pair.candidate.finish_reason
            found["both_answered"] = 1.0
            found["finish_differs"] = float(ends[0] != ends[1])
            found["candidate_longer"] = float(ends == ("stop", "length"))
            found["candidate_shorter"] = float(ends == ("length", "stop"))
        return pack(self.names(context), found)

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        sums = Sums(self.names(context), values)
        margin = context.gates.error_margin
        wealth = sum(np.multiply.outer(count, ERROR_BETS.above(d, margin, -1.0)) for d, count in _outcomes(sums))
        failed = sums["only_baseline"] + sums["both_failed"]
        return {
            "errors": ERROR_BETS.log_e(np.asarray(wealth)),
            "errors.baseline": rate_above(failed, sums["requests"], BASELINE_FAILURES),
        }

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        return [self._excess(context, sums), self._baseline(context, sums)]

    def _excess(self, context: Context, sums: Sums) -> GateEvidence:
        n = sums["requests"]
        candidate, baseline = (sums[f"only_{arm}"] + sums["both_failed"] for arm in ("candidate", "baseline"))
        return judge_excess(
            context,
            self.gate,
            _outcomes(sums),
            sums,
            self.log_e(context, sums.values),
            found=f"{candidate:.0f} candidate and {baseline:.0f} baseline arms failed in {n:.0f} requests",
            failing="candidate_fails",
            details={
                "candidate_failed": int(candidate),
                "baseline_failed": int(baseline),
                **{name: int(sums[name]) for name in (*self.counts[1:], *self.finishes)},
            },
        )

    def _baseline(self, context: Context, sums: Sums) -> GateEvidence:
        n, failed = sums["requests"], sums["only_baseline"] + sums["both_failed"]
        facts = f"{failed:.0f} of {n:.0f} baseline arms failed"
        if reached(sums, self.log_e(context, sums.values), "errors.baseline") >= log_budget(context.alpha):
            found = Verdict.FAIL, "baseline_failing", f"{facts}, proven to be more than {BASELINE_FAILURES:g}."
        elif n < MIN_REQUESTS:
            found = Verdict.NO_DATA, "too_few", f"{facts}; at least {MIN_REQUESTS} requests are needed."
        else:
            found = Verdict.PASS, "baseline_answers", f"{facts}, not proven to be more than {BASELINE_FAILURES:g}."
        verdict, reason, sentence = found
        return GateEvidence(
            "baseline",
            GateRole.HARNESS,
            verdict,
            reason,
            sentence,
            value=failed / n if n else None,
            threshold=BASELINE_FAILURES,
            n=int(n),
            needed=max(0, MIN_REQUESTS - int(n)),
        )


def _outcomes(sums: Sums) -> tuple[tuple[float, float], ...]:
    """(D, how often)."""
    same = sums["both_failed"] + sums["both_answered"]
    return (1.0, sums["only_candidate"]), (-1.0, sums["only_baseline"]), (0.0, same)


def judge_excess(
    context: Context,
    gate: str,
    outcomes: tuple[tuple[float, float], ...],
    sums: Sums,
    log_e: Mapping[str, float],
    *,
    found: str,
    failing: str,
    details: Mapping[str, object],
) -> GateEvidence:
    """A safety gate about D = candidate's fault - baseline's, in {-1, 0, 1}: is its mean above `error_margin`?

    Args:
        gate: its name, and the key of its e-process in `log_e` and in the peaks of `sums`.
        outcomes: (D, how often).
        found: what was counted, in words; the sentence begins with it.
        failing: reason code of a proven excess.
        details: shown beside the progress of the e-value.
    """
    margin, alpha = context.gates.error_margin, context.error_alpha
    n, excess = sum(count for _, count in outcomes), sum(d * count for d, count in outcomes)
    peak = reached(sums, log_e, gate)
    if peak >= log_budget(alpha):
        verdict, reason, said = Verdict.FAIL, failing, f"{found}: proven to be more than {margin:g} worse."
    elif n < MIN_REQUESTS:
        verdict, reason, said = Verdict.NO_DATA, "too_few", f"{found}; at least {MIN_REQUESTS} requests are needed."
    elif log_e[gate] >= math.log(SUSPICIOUS):
        verdict, reason, said = Verdict.INCONCLUSIVE, "suspicious", f"{found}: nearly proven to be more than {margin:g} worse."
    elif excess > margin * n:
        verdict, reason, said = (
            Verdict.INCONCLUSIVE,
            "excess_possible",
            f"{found}: an excess above {margin:g}, which is not proven.",
        )
    else:
        verdict, reason, said = Verdict.PASS, "no_excess", f"{found}: no sign of an excess above {margin:g}."
    low, high = excess_interval(outcomes, alpha) if n else (None, None)
    return GateEvidence(
        gate,
        GateRole.SAFETY,
        verdict,
        reason,
        said,
        value=excess / n if n else None,
        low=low,
        high=high,
        threshold=margin,
        n=int(n),
        needed=_needed(verdict, reason, n, excess / margin),
        progress=min(n / MIN_REQUESTS, 1.0),
        details={"e_value_progress": progress(peak, alpha), **details},
    )


def _needed(verdict: Verdict, reason: str, n: float, enough: float) -> int | None:
    """Further requests without a fault until the gate can pass; `enough` is where the excess equals the margin."""
    if verdict in (Verdict.PASS, Verdict.NO_DATA):
        return max(0, MIN_REQUESTS - int(n))
    return math.ceil(enough - n) if reason == "excess_possible" else None


def excess_interval(outcomes: tuple[tuple[float, float], ...], alpha: float) -> tuple[float, float]:
    """Anytime bounds of the mean of D, each at alpha, in steps of .002, by inversion of the exact bets.

    Args:
        outcomes: (D, how often), D in {-1, 0, 1}.
    """
    grid, budget = np.linspace(-1, 1, 1001)[1:-1], log_budget(alpha)
    fractions, weights = np.array(ERROR_BETS.fractions)[:, None], np.array(ERROR_BETS.weights)
    above, below = np.zeros((len(weights), len(grid))), np.zeros((len(weights), len(grid)))  # [bets, nulls]
    for d, count in outcomes:
        above += count * np.log1p(fractions * (d - grid) / (grid + 1))
        below += count * np.log1p(fractions * (grid - d) / (1 - grid))
    low = highest_excluded(grid, log_mixture(above, weights) >= budget, -1.0)
    return low, lowest_excluded(grid, log_mixture(below, weights) >= budget, 1.0)
