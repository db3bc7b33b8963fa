"""Are the engine's rows the reference model's rows? The mean distance beyond the baseline's own, and the rate of outliers.

Both arms are compared with the same reference; the baseline's arm measures the noise floor and must never be taken for the truth.
Source: statistics 0b.2, 0b.3 and 3.6.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.traffic import Stratum
from canary.stats import events, late
from canary.stats.batch import Batch, Together
from canary.stats.bounded import Bets, Moments, log_budget, lower_bound, progress, upper_bound
from canary.stats.events import Events
from canary.stats.part import Context, Sums, Vector
from canary.stats.scored import Scored, by_stratum, distances
from canary.stats.strata import combine, nothing_yet, reached, section, tested_strata

EXACT_ROW_MARGIN = 0.01  # fp32: the candidate's own mean distance, not its excess
OUTLIER_NULL = 1e-4  # rate of outlier rows that an honest engine may have
ROW_BETS = Bets((0.1, 0.3, 0.6, 0.95), (0.1, 0.1, 0.2, 0.6))  # noise is far below the margin, so the largest stake leads


@cache
def _of(stratum: Stratum, name: str) -> str:
    return f"{stratum}.{name}"


@cache
def _row_names() -> tuple[str, ...]:
    one = (*RowGate.counters, *ROW_BETS.names("below"), *ROW_BETS.names("above"), *late.NAMES)
    return tuple(_of(s, name) for s in Stratum for name in one)


class RowGate(Together):
    """Certifies that the mean row distance exceeds the baseline's by less than the margin; the unit is the request.

    X = mean of the candidate's clipped distances over its own text - the same of the baseline, in [-tau_row, tau_row].
    Where rows are exact (fp32), X is the candidate's mean alone and the margin is .01 or the policy's, whichever is smaller.
    A tenth of the answers is replayed through k = 0 as well: outliers there, in any position bucket, fail the gate (see `late`).
    `log_e`: `row_gate.STRATUM.below` and `.above`, against "the mean is at least / at most the margin", and `.replay`.
    """

    name = "row_gate"
    gate = "row_gate"
    counters = ("requests", "n", "x", "xx", "candidate", "baseline")

    def names(self, context: Context) -> tuple[str, ...]:
        return _row_names()

    def margin(self, context: Context) -> float:
        """What the mean must be below, as TV."""
        return min(context.gates.row_margin, EXACT_ROW_MARGIN) if context.exact_rows else context.gates.row_margin

    def increments_many(self, batch: Batch) -> Vector:
        """Requests by stratum; of scored ones the bets on X, their moments and distances, and what `late` adds."""
        context, scored, width = batch.context, Scored.of(batch), len(_row_names()) // len(Stratum)
        found, first = by_stratum(batch, width)
        found[np.arange(len(first)), first] = 1.0
        if scored.places:
            own = np.concatenate([self._bets(context, scored), late.increments(context, scored)], axis=1)  # all but the count
            places = first[scored.places, None] + 1 + np.arange(own.shape[1])
            found[np.asarray(scored.places)[:, None], places] = own
        return found

    def _bets(self, context: Context, scored: Scored) -> Vector:
        """`counters` but the first, then the bets; zeros while the attempt calibrates."""
        size = len(self.counters) - 1 + 2 * len(ROW_BETS.fractions)
        if context.calibration is None:
            return np.zeros((len(scored.places), size))
        tau, margin = context.gates.tau_row, self.margin(context)
        candidate, baseline = (
            table.tokens.sum(np.minimum(distances(table, "row_tv"), tau)) / table.tokens.lengths for table in scored.arms
        )
        x = candidate if context.exact_rows else candidate - baseline
        low = 0.0 if context.exact_rows else -tau
        counted = np.stack([np.ones_like(x), x, x * x, candidate, baseline], axis=1)
        return np.concatenate([counted, ROW_BETS.below(x, margin, tau), ROW_BETS.above(x, margin, low)], axis=1)

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        sums = Sums(self.names(context), values)
        found = {
            f"row_gate.{s}.{side}": ROW_BETS.log_e(section(sums, [_of(s, n) for n in ROW_BETS.names(side)]))
            for s in Stratum
            for side in ("below", "above")
        }
        return found | {f"row_gate.{s}.replay": late.log_e(context, sums, _of(s, "")) for s in Stratum}

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        tested = tested_strata({s: sums[_of(s, "requests")] for s in Stratum})
        if not tested:
            return [nothing_yet(context, self.gate, "requests", self.margin(context))]
        return [combine({s: self._stratum(context, sums, s) for s in tested})]

    def _stratum(self, context: Context, sums: Sums, stratum: Stratum) -> GateEvidence:
        margin, n = self.margin(context), sums[_of(stratum, "n")]
        if not n:
            return nothing_yet(context, self.gate, "requests", margin)
        log_e = self.log_e(context, sums.values)
        below, above, replay = (reached(sums, log_e, f"row_gate.{stratum}.{side}") for side in ("below", "above", "replay"))
        wealth = section(sums, [_of(stratum, name) for name in ROW_BETS.names("below")])
        moments = Moments(n, sums[_of(stratum, "x")], sums[_of(stratum, "xx")])
        verdict, reason, sentence = self._verdict(context, moments, below, above)
        if reason != "rows_differ" and replay >= log_budget(context.alpha):
            verdict, (reason, sentence) = Verdict.FAIL, late.refuted(context, sums, _of(stratum, ""))
        low, high = self._bounds(context, moments)
        return GateEvidence(
            self.gate,
            GateRole.EQUIVALENCE,
            verdict,
            reason,
            sentence,
            value=moments.total / n,
            low=max(low, margin) if reason == "rows_differ" else low,
            high=min(high, margin) if verdict is Verdict.PASS else high,
            threshold=margin,
            n=int(n),
            needed=0 if verdict is Verdict.PASS else ROW_BETS.needed(wealth, n, context.alpha),
            progress=progress(below, context.alpha),
            details={
                "noise_floor": sums[_of(stratum, "baseline")] / n,
                "candidate_distance": sums[_of(stratum, "candidate")] / n,
                "clipped_at": context.gates.tau_row,
                "absolute": context.exact_rows,
                "by_position": late.details(context, sums, _of(stratum, "")),
            },
        )

    def _bounds(self, context: Context, moments: Moments) -> tuple[float, float]:
        """Anytime bounds of the mean of X, each at alpha."""
        low, high = 0.0 if context.exact_rows else -context.gates.tau_row, context.gates.tau_row
        bounds = (bound(ROW_BETS, moments, low, high, context.alpha) for bound in (lower_bound, upper_bound))
        return next(bounds), next(bounds)

    def _verdict(self, context: Context, moments: Moments, below: float, above: float) -> tuple[Verdict, str, str]:
        margin, budget = self.margin(context), log_budget(context.alpha)
        what = "mean row distance" if context.exact_rows else "mean row distance beyond the baseline's"
        facts = f"The {what} is {moments.total / moments.n:.5f} over {moments.n:.0f} requests"
        if above >= budget:
            return Verdict.FAIL, "rows_differ", f"{facts}, proven to be above {margin:g}."
        if below >= budget:
            return Verdict.PASS, "certified", f"{facts}, certified below {margin:g}."
        return Verdict.INCONCLUSIVE, "not_yet", f"{facts}, not yet certified below {margin:g}."


class Outliers(Together):
    """Certifies that rows farther than tau_row from the reference are rare, and requests with one; kills when they are common.

    Gates: `outliers` (positions, against `outlier_rate`) and `outlier_requests` (requests, `request_margin`); see `events`.
    `log_e`: `row_outliers` (kill) over both strata, with the null 1e-4 of the positions; a noisy reference, or a baseline that is
    as bad, does not kill. `outliers.STRATUM.` with the keys of `Events.log_e`.
    """

    name = "outliers"

    def names(self, context: Context) -> tuple[str, ...]:
        return (*(_of(s, name) for s in Stratum for name in ("requests", *events.NAMES)), *events.SIGNS)

    def increments_many(self, batch: Batch) -> Vector:
        """Requests by stratum and the events of scored ones; signs are of both strata together."""
        scored, limit, width = Scored.of(batch), batch.context.gates.tau_row, 1 + len(events.NAMES)
        found, first = by_stratum(batch, width)
        found[np.arange(len(first)), first] = 1.0
        signs = np.zeros((len(first), len(events.SIGNS)))
        if scored.places:
            candidate, baseline = (distances(table, "row_tv") > limit for table in scored.arms)
            counts = events.increments(batch.context, scored, candidate, baseline)
            places = first[scored.places, None] + np.arange(1, width)
            found[np.asarray(scored.places)[:, None], places] = counts[:, : width - 1]
            signs[scored.places] = counts[:, width - 1 :]
        return np.concatenate([found, signs], axis=1)

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        sums, rare = Sums(self.names(context), values), self._events(context)
        outliers, positions = (sum(sums[_of(s, name)] for s in Stratum) for name in ("events", "positions"))
        found = {"row_outliers": events.log_kill(outliers, positions, OUTLIER_NULL, sums)}
        for s in Stratum:
            found |= {f"outliers.{s}.{key}": value for key, value in rare.log_e(context, self._seen(sums, s)).items()}
        return found

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        rare, gates = self._events(context), context.gates
        tested = tested_strata({s: sums[_of(s, "requests")] for s in Stratum})
        if not tested:
            return [
                nothing_yet(context, rare.position_gate, "positions", rare.rate),
                nothing_yet(context, rare.request_gate, "requests", gates.request_margin),
            ]
        found = {s: rare.assess(context, sums, self._seen(sums, s), f"outliers.{s}.") for s in tested}
        return [combine({s: both[at] for s, both in found.items()}) for at in range(2)]

    def request_weights(self, context: Context) -> Vector:
        """See `part.Watched`."""
        return events.REQUEST_WEIGHTS

    def log_request_bets(self, context: Context, increments: Vector) -> Vector:
        """See `part.Watched`; both strata together, as in the kill."""
        sums = Sums(self.names(context), increments)
        found, positions = (section(sums, [_of(s, name) for s in Stratum]).sum(axis=1) for name in ("events", "positions"))
        signs = section(sums, events.SIGNS)  # [pairs, 2]
        return events.log_request_bets(found, positions, OUTLIER_NULL, signs[:, 0], signs[:, 1])

    def _events(self, context: Context) -> Events:
        return Events(
            position_gate="outliers",
            request_gate="outlier_requests",
            events=f"rows farther than {context.gates.tau_row:g} from the reference",
            an_event=f"a row farther than {context.gates.tau_row:g} from the reference",
            rate=context.gates.outlier_rate,
        )

    @staticmethod
    def _seen(sums: Sums, stratum: Stratum) -> dict[str, float]:
        return {name: sums[_of(stratum, name)] for name in events.NAMES}
