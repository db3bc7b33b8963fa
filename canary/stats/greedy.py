"""Greedy requests: does the candidate ever emit a token that the reference would not have chosen?

Text equality is never looked at: one near tie changes all that follows, in the baseline too. Source: statistics 3.7 and 0b.4.
"""

from __future__ import annotations

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.domain.traffic import Stratum
from canary.stats import events
from canary.stats.batch import Batch, Together
from canary.stats.events import Events
from canary.stats.part import Context, Sums, Vector
from canary.stats.scored import Scored, distances
from canary.stats.strata import section, tested_strata

EXACT_TAU_GAP = 1e-3  # logits; fp32 rows have no noise to allow for
PREFIX = "gap."


class Greedy(Together):
    """Teacher-forced logit gaps of the greedy stratum; a gap above tau_gap is an event (see `events`).

    Gates: `gap_certificate` (positions, against `gap_rate`) and `request_certificate_greedy` (requests, `request_margin`).
    `log_e`: `greedy_gap` (kill, with the null `gap_floor`), and `gap.` with the keys of `Events.log_e`.
    Where rows are exact (fp32), tau_gap is 1e-3 or the policy's, whichever is smaller.
    """

    name = "greedy"
    counts = ("requests", "greedy_requests")

    def names(self, context: Context) -> tuple[str, ...]:
        return (*self.counts, *events.NAMES, *events.SIGNS)

    def tau(self, context: Context) -> float:
        """The gap, in logits, above which a token is an event."""
        return min(context.gates.tau_gap, EXACT_TAU_GAP) if context.exact_rows else context.gates.tau_gap

    def increments_many(self, batch: Batch) -> Vector:
        """Requests, and the events of those that are greedy and scored."""
        found = np.zeros((len(batch.pairs), len(self.names(batch.context))))
        greedy = [pair.stratum is Stratum.GREEDY for pair in batch.pairs]
        found[:, 0], found[:, 1] = 1.0, greedy
        scored = Scored.of(batch)
        if any(greedy[at] for at in scored.places):
            candidate, baseline = (distances(table, "logit_gap") > self.tau(batch.context) for table in scored.arms)
            counts = events.increments(batch.context, scored, candidate, baseline)
            for row, at in enumerate(scored.places):
                if greedy[at]:
                    found[at, len(self.counts) :] = counts[row]
        return found

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        sums = Sums(self.names(context), values)
        kill = events.log_kill(sums["events"], sums["positions"], context.gates.gap_floor, sums)
        certificates = self._events(context).log_e(context, self._seen(sums))
        return {"greedy_gap": kill, **{f"{PREFIX}{key}": value for key, value in certificates.items()}}

    def request_weights(self, context: Context) -> Vector:
        """See `part.Watched`."""
        return events.REQUEST_WEIGHTS

    def log_request_bets(self, context: Context, increments: Vector) -> Vector:
        """See `part.Watched`; a sampled request changes nothing."""
        seen = section(Sums(self.names(context), increments), ("events", "positions", *events.SIGNS))  # [pairs, 4]
        return events.log_request_bets(seen[:, 0], seen[:, 1], context.gates.gap_floor, seen[:, 2], seen[:, 3])

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        """Both certificates; nothing where the route's greedy requests are too few to be tested."""
        greedy = sums["greedy_requests"]
        requests = {Stratum.GREEDY: greedy, Stratum.SAMPLED: sums["requests"] - greedy}
        if Stratum.GREEDY not in tested_strata(requests):
            return []
        return list(self._events(context).assess(context, sums, self._seen(sums), PREFIX))

    def _events(self, context: Context) -> Events:
        return Events(
            position_gate="gap_certificate",
            request_gate="request_certificate_greedy",
            events=f"tokens more than {self.tau(context):g} logits below the reference's choice",
            an_event="a token that the reference would not have chosen",
            rate=context.gates.gap_rate,
        )

    @staticmethod
    def _seen(sums: Sums) -> dict[str, float]:
        return {name: sums[name] for name in events.NAMES}
