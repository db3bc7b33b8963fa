"""Change detection: after a long clean history the kill e-value reacts late, so every request is also a possible first bad one.

It raises an alarm for a person and opens a confirmation from zero; only a confirmed change is a proof, and an alarm is none.
Source: Shiryaev-Roberts e-detectors (Shin, Ramdas and Rinaldo; statistics 3.9 and 0b.5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from canary.domain import budget
from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.facts import CHANGE_ALARM, CHANGE_GATE
from canary.stats.part import Context, Vector
from canary.stats.suspects import Suspect

CONFIRM_REQUESTS = 1000  # a confirmation that has not crossed by then closes; faults above the margin need fewer (statistics 6)
MOST_LOG = 600.0  # of one request's bet
MOST = 1e300  # a statistic counts no further

LogKill = Callable[[Vector], Vector]  # sums [pairs, width] -> log of the losslessness e-value [pairs]


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm and its confirmation.

    Args:
        ordinal: of the request that raised it.
        sums: at that request; the confirmation is the kill e-value of the sums since.
        pairs: that the confirmation has seen, at most `CONFIRM_REQUESTS`.
        peak: largest log of the confirming e-value.
        confirmed: it crossed; stays so for the rest of the attempt.
    """

    ordinal: int
    sums: Vector
    pairs: int = 0
    peak: float = 0.0
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class Watch:
    """What the change detector remembers.

    Args:
        statistic: R of every bet since it last started, [bets].
        num_alarms: raised so far in this attempt.
        alarm: the open or confirmed one.
    """

    statistic: Vector
    num_alarms: int = 0
    alarm: Alarm | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values that keep every bit."""
        alarm = self.alarm
        return {
            "statistic": self.statistic.tolist(),
            "num_alarms": self.num_alarms,
            "alarm": alarm
            and {
                "ordinal": alarm.ordinal,
                "sums": alarm.sums.tolist(),
                "pairs": alarm.pairs,
                "peak": alarm.peak,
                "confirmed": alarm.confirmed,
            },
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Watch:
        """The inverse of `to_json`."""
        alarm = body["alarm"]
        return cls(
            np.array(body["statistic"], dtype=np.float64),
            body["num_alarms"],
            Alarm(**{**alarm, "sums": np.array(alarm["sums"], dtype=np.float64)}) if alarm else None,
        )


def threshold(context: Context) -> float:
    """Mean R that raises an alarm: an exact engine needs at least so many requests on average to reach it."""
    return budget.run_length(context.gates.watch_requests_per_day)


def advance(
    watch: Watch, limit: float, log_bets: Vector, weights: Vector, ordinals: Sequence[int], sums: Vector, log_kill: LogKill
) -> Watch:
    """Look at consecutive entered pairs; the same bits however they are split.

    R <- (1 + R) * e per bet is at most the number of requests in the mean under the null, whatever the dependence, so that the
    weighted mean reaches a limit after at least so many requests on average. After an alarm the detector rests until its
    confirmation closes.

    Args:
        limit: see `threshold`.
        log_bets: [pairs, bets]; weights: [bets], their sum at most 1.
        ordinals: of the pairs.
        sums: after each of the pairs, [pairs, width].
        log_kill: the losslessness e-value at given sums.
    """
    at, end = 0, len(ordinals)
    while at < end:
        if watch.alarm is None:
            watch, at = _detect(watch, limit, log_bets, weights, ordinals, sums, at)
        elif watch.alarm.confirmed:
            break
        else:
            stop = min(end, at + CONFIRM_REQUESTS - watch.alarm.pairs)
            watch = _confirm(watch, watch.alarm, log_kill(sums[at:stop] - watch.alarm.sums))
            at = stop
    return watch


def _detect(
    watch: Watch, limit: float, log_bets: Vector, weights: Vector, ordinals: Sequence[int], sums: Vector, at: int
) -> tuple[Watch, int]:
    """Run from pair `at` to an alarm or to the end; also the pair to go on with."""
    bets = np.exp(np.clip(log_bets[at:], -MOST_LOG, MOST_LOG))
    found = np.empty_like(bets)  # R after each pair
    last = watch.statistic
    with np.errstate(over="ignore"):
        for row, bet in zip(found, bets, strict=True):
            np.multiply(last + 1.0, bet, out=row)
            np.minimum(row, MOST, out=row)
            last = row
    high = np.flatnonzero((found * weights).sum(axis=1) >= limit)
    if not high.size:
        return replace(watch, statistic=last.copy()), at + len(bets)
    first = at + int(high[0])
    alarm = Alarm(ordinals[first], sums[first].copy())
    return Watch(np.zeros_like(last), watch.num_alarms + 1, alarm), first + 1


def _confirm(watch: Watch, alarm: Alarm, log_kill: Vector) -> Watch:
    """Take in the confirming e-value after further pairs; an unconfirmed alarm closes when its requests are used up."""
    crossed = np.flatnonzero(log_kill >= -math.log(budget.CONFIRM_ALPHA))
    seen = log_kill[: crossed[0] + 1] if crossed.size else log_kill  # nothing after the crossing counts, however work is split
    pairs, peak = alarm.pairs + len(seen), max(alarm.peak, float(seen.max()))
    if pairs >= CONFIRM_REQUESTS and not crossed.size:
        return replace(watch, alarm=None)
    return replace(watch, alarm=replace(alarm, pairs=pairs, peak=peak, confirmed=bool(crossed.size)))


def judge(
    context: Context, watch: Watch, weights: Vector, pairs: int, suspect: Suspect | None, parts: Sequence[str] = ()
) -> GateEvidence:
    """The gate `change`: passes while quiet, is inconclusive while an alarm is being confirmed, and fails once it is.

    Args:
        pairs: folded so far.
        suspect: what explains the evidence since the alarm; None without any.
        parts: names of the parts that the detector watches; it sees nothing else.
    """
    limit, alarm, statistic = threshold(context), watch.alarm, float((watch.statistic * weights).sum())
    goal = 1 / budget.CONFIRM_ALPHA
    details: dict[str, object] = {
        "alarms": watch.num_alarms,
        "statistic": statistic,
        "mean_requests_between_false_alarms": limit,
        "watched": list(parts),
    }
    if alarm is None:
        verdict, reason = (Verdict.PASS, "no_change") if pairs else (Verdict.NO_DATA, "no_data")
        sentence = f"No change after {pairs} pairs: the detector is at {statistic:.3g} of {limit:.3g}."
        return GateEvidence(
            CHANGE_GATE, GateRole.SAFETY, verdict, reason, sentence, statistic, threshold=limit, n=pairs, details=details
        )
    value, words = math.exp(min(alarm.peak, 700.0)), f" ({suspect.words})" if suspect else ""
    details |= {
        "ordinal": alarm.ordinal,
        "confirming_pairs": alarm.pairs,
        "suspect": suspect and {"code": suspect.code, "words": suspect.words, "resembles": suspect.resembles},
    }
    if alarm.confirmed:
        verdict, reason = Verdict.FAIL, "change_confirmed"
        sentence = f"The output changed near request {alarm.ordinal}{words}: confirmed with e-value {value:.3g} of {goal:g}."
    else:
        verdict, reason = Verdict.INCONCLUSIVE, CHANGE_ALARM
        sentence = (
            f"The output may have changed near request {alarm.ordinal}{words}; since then the e-value reached {value:.3g} of "
            f"{goal:g} in {alarm.pairs} of at most {CONFIRM_REQUESTS} requests."
        )
    return GateEvidence(
        CHANGE_GATE,
        GateRole.SAFETY,
        verdict,
        reason,
        sentence,
        value,
        threshold=goal,
        n=alarm.pairs,
        needed=None if alarm.confirmed else CONFIRM_REQUESTS - alarm.pairs,
        details=details,
    )
