"""Rare events of a text, counted by position and by request in both arms: outlier rows and greedy gaps alike.

A bad request is bad at many positions at once, so a rate of positions must never be read as one of requests: both are claimed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.stats.part import Context, Sums, Vector
from canary.stats.ragged import Flags
from canary.stats.rate_gate import Claim, Floor, judge
from canary.stats.rates import rate_above, rate_below, sign_above
from canary.stats.scored import Scored
from canary.stats.strata import reached

ARMS = ("positions", "events", "baseline_positions", "baseline_events", "baseline_requests", "baseline_requests_hit")
CERTIFIED = ("certified_positions", "certified_events", "certified_requests", "certified_requests_hit")
NAMES = (*ARMS, *CERTIFIED)
SIGNS = ("only_candidate", "only_baseline")


def increments(context: Context, scored: Scored, candidate: Flags, baseline: Flags) -> Vector:
    """What every scored pair adds to `NAMES` and `SIGNS`; calibrating pairs enter no certificate.

    Args:
        candidate, baseline: where each arm has an event, [tokens] of that arm.

    Returns:
        [scored, len(NAMES) + len(SIGNS)].
    """
    ours, theirs = (table.tokens for table in scored.arms)
    one, hit, baseline_hit = np.ones(len(scored.places)), ours.any(candidate), theirs.any(baseline)
    seen = [ours.lengths, ours.sum(candidate), theirs.lengths, theirs.sum(baseline), one, baseline_hit]
    certified = [seen[0], seen[1], one, hit] if context.calibration is not None else [0.0 * one] * len(CERTIFIED)
    # A sign is about the positions that both texts have.
    shared = np.minimum(ours.lengths, theirs.lengths)
    here, there = (t.any(flags & (t.offset < shared[t.group])) for t, flags in ((ours, candidate), (theirs, baseline)))
    return np.stack([*seen, *certified, here & ~there, there & ~here], axis=1).astype(np.float64)


def log_kill(events: float, positions: float, null: float, sums: Sums) -> float:
    """Log of the smaller of two e-processes: events are at most `null` of the positions, and a request with one is as likely in
    the baseline as in the candidate (`SIGNS`). The smaller of two is an e-process for "either holds".
    """
    sign = sign_above(sums["only_candidate"], sums["only_baseline"])
    return cast(float, np.minimum(rate_above(events, positions, null), sign))


REQUEST_RATES = (1e-3, 1e-2, 0.1)  # of events, in a request that a change has spoilt
REQUEST_SIGNS = (0.75, 0.95)  # probability that of a pair's arms it is the candidate's that has them
REQUEST_WEIGHTS = np.full(len(REQUEST_RATES) * len(REQUEST_SIGNS), 1 / (len(REQUEST_RATES) * len(REQUEST_SIGNS)))


def log_request_bets(events: Vector, positions: Vector, null: float, wins: Vector, losses: Vector) -> Vector:
    """What a change detector multiplies by at each request: of a rate bet and a sign bet the smaller, as in `log_kill`.

    The smaller of two factors has mean at most 1 under either null.

    Args:
        events, positions: of single pairs, [pairs]; wins, losses: their `SIGNS`.

    Returns:
        [pairs, len(REQUEST_WEIGHTS)].
    """
    rates, signs = np.asarray(REQUEST_RATES), np.asarray(REQUEST_SIGNS)
    misses = positions - events
    rate = np.multiply.outer(events, np.log(rates / null)) + np.multiply.outer(misses, np.log1p(-rates) - math.log1p(-null))
    sign = np.multiply.outer(wins, np.log(2 * signs)) + np.multiply.outer(losses, np.log(2 * (1 - signs)))
    smaller: Vector = np.minimum(rate[:, :, None], sign[:, None, :])  # [pairs, rates, signs]
    return smaller.reshape(len(events), -1)


@dataclass(frozen=True, slots=True)
class Events:
    """Two gates about one kind of event.

    Args:
        position_gate, request_gate: their names.
        events: the events in the plural.
        an_event: one of them, with its article.
        rate: what the position gate excludes; the request gate excludes the policy's `request_margin`.
    """

    position_gate: str
    request_gate: str
    events: str
    an_event: str
    rate: float

    def log_e(self, context: Context, seen: Mapping[str, float]) -> dict[str, float]:
        """`below` and `above` against the rate, `request.below` and `request.above` against the request margin, and the noise:
        `floor` against "at most the rate of the baseline's positions, or at most the margin of its requests" and
        `request.floor` against the latter.

        Args:
            seen: counts by `NAMES`.
        """
        margin = context.gates.request_margin
        positions = seen["certified_events"], seen["certified_positions"]
        requests = seen["certified_requests_hit"], seen["certified_requests"]
        request_floor = rate_above(seen["baseline_requests_hit"], seen["baseline_requests"], margin)
        return {
            "below": rate_below(*positions, self.rate),
            "above": rate_above(*positions, self.rate),
            "request.below": rate_below(*requests, margin),
            "request.above": rate_above(*requests, margin),
            "floor": cast(
                float, np.minimum(rate_above(seen["baseline_events"], seen["baseline_positions"], self.rate), request_floor)
            ),
            "request.floor": request_floor,
        }

    def assess(self, context: Context, sums: Sums, seen: Mapping[str, float], prefix: str) -> tuple[GateEvidence, GateEvidence]:
        """The position gate and the request gate.

        A floor counts by its current value: one bad baseline request at the start says nothing after many good ones.

        Args:
            sums: of the part, with its peaks.
            prefix: of the part's `log_e` keys.
        """
        now = {f"{prefix}{key}": value for key, value in self.log_e(context, seen).items()}
        floor = Floor(
            log_e=now[f"{prefix}floor"],
            events=seen["baseline_events"],
            positions=seen["baseline_positions"],
            requests_hit=seen["baseline_requests_hit"],
            requests=seen["baseline_requests"],
        )
        position = Claim(
            gate=self.position_gate,
            what=self.events,
            claims="a conditional rate at each position of less than {rate:g}",
            rate=self.rate,
            hits=seen["certified_events"],
            total=seen["certified_positions"],
            unit="positions",
            log_below=reached(sums, now, f"{prefix}below"),
            log_above=reached(sums, now, f"{prefix}above"),
            floor=floor,
        )
        request = Claim(
            gate=self.request_gate,
            what=f"requests with {self.an_event}",
            claims="less than {rate:g} of all requests",
            rate=context.gates.request_margin,
            hits=seen["certified_requests_hit"],
            total=seen["certified_requests"],
            unit="requests",
            log_below=reached(sums, now, f"{prefix}request.below"),
            log_above=reached(sums, now, f"{prefix}request.above"),
            floor=floor.with_log_e(now[f"{prefix}request.floor"]),
        )
        return judge(context, position), judge(context, request)
