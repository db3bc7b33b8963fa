"""The tail of the TTFT: does the candidate have more slow first tokens than the baseline?

What counts as slow is fixed before any counted request: the policy's SLO, or the calibrating baseline's 95th percentile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.pairs import Pair
from canary.stats.bounded import Bets, counted_interval, log_budget, progress
from canary.stats.part import Context, Sums
from canary.stats.timings import compared, decides, wording

GATE = "ttft_tail"
# Stakes around the best one where one first token in twenty is slow in either arm: .2 if the arms are independent, .4 if tied.
TAIL_BETS = Bets.even(0.1, 0.2, 0.4, 0.7)
MIN_TIMED = 10  # of the calibrating requests
COUNTS = ("tail.only_candidate", "tail.only_baseline", "tail.both", "tail.neither")


def calibrated(context: Context, pairs: Sequence[Pair | None]) -> float | None:
    """The 95th percentile of the baseline's TTFT over calibrating ordinals, in seconds; None with fewer than `MIN_TIMED`.

    Args:
        pairs: the first ordinals, None for a tombstone; those that are not timed in the deciding load band say nothing.
    """
    seconds = []
    for pair in pairs:
        band, timings = compared(pair) if pair is not None and pair.error is None else ("", None)
        if timings is not None and decides(context, band):
            seconds.append(timings[0].ttft_seconds)
    return float(np.quantile(seconds, 0.95)) if len(seconds) >= MIN_TIMED else None


def slow_from(context: Context) -> float | None:
    """TTFT in seconds above which a first token is slow; None while nothing says so."""
    if context.gates.ttft_slo_seconds is not None:
        return context.gates.ttft_slo_seconds
    return None if context.calibration is None else context.calibration.ttft_p95


def observed(context: Context, baseline: float, candidate: float) -> dict[str, float]:
    """What one timed request adds; nothing while no threshold is fixed.

    Args:
        baseline, candidate: TTFT in seconds.
    """
    limit = slow_from(context)
    if limit is None:
        return {}
    slow = candidate > limit, baseline > limit
    return {{(True, False): COUNTS[0], (False, True): COUNTS[1], (True, True): COUNTS[2], (False, False): COUNTS[3]}[slow]: 1.0}


def log_e(context: Context, sums: Sums) -> dict[str, float]:
    """Bets on D = candidate slow - baseline slow, in {-1, 0, 1}, with the margin as the null of its mean, either way."""
    margin = context.gates.ttft_tail_margin
    below = sum(np.multiply.outer(count, TAIL_BETS.below(d, margin, 1.0)) for d, count in _outcomes(sums))  # [..., bets]
    above = sum(np.multiply.outer(count, TAIL_BETS.above(d, margin, -1.0)) for d, count in _outcomes(sums))
    return {"ttft.tail_below": TAIL_BETS.log_e(np.asarray(below)), "ttft.tail_above": TAIL_BETS.log_e(np.asarray(above))}


def assess(context: Context, sums: Sums, now: dict[str, float]) -> GateEvidence:
    """The gate `ttft_tail`: "at most `ttft_tail_margin` more first tokens are slow"."""
    margin, limit = context.gates.ttft_tail_margin, slow_from(context)
    only_candidate, only_baseline, both, neither = (float(sums[name]) for name in COUNTS)
    n = only_candidate + only_baseline + both + neither
    if not n:
        return _nothing(context, limit)
    budget, words = log_budget(context.alpha), wording(context)
    peaks = {key: max(float(now[key]), float(sums.peaks.get(key, now[key]))) for key in ("ttft.tail_below", "ttft.tail_above")}
    wealth = np.asarray(sum(count * TAIL_BETS.below(d, margin, 1.0) for d, count in _outcomes(sums)))
    needed = TAIL_BETS.needed(wealth, n, context.alpha)
    facts = (
        f"{only_candidate + both:.0f} candidate and {only_baseline + both:.0f} baseline first tokens took over {limit:.3g} s "
        f"in {n:.0f} {words.timed}"
    )
    worse = now["ttft.tail_above"] > now["ttft.tail_below"]
    if peaks["ttft.tail_above"] >= budget and (worse or peaks["ttft.tail_below"] < budget):
        verdict, reason, tail = Verdict.FAIL, "slow_first_tokens", f"proven to be more than {margin:g} more"
    elif peaks["ttft.tail_below"] >= budget:
        verdict, reason, tail = Verdict.PASS, "no_excess", f"certified to be less than {margin:g} more"
    else:
        more = f"about {needed} more {words.unit} are needed" if needed is not None else "the evidence is not growing"
        verdict, reason, tail = Verdict.INCONCLUSIVE, "not_yet", f"not yet certified to be less than {margin:g} more: {more}"
    low, high = counted_interval(TAIL_BETS, _outcomes(sums), -1.0, 1.0, context.alpha)
    return GateEvidence(
        GATE,
        GateRole.ECONOMY,
        verdict,
        reason,
        f"{facts}, {tail}.",
        value=(only_candidate - only_baseline) / n,
        low=low,
        high=min(high, margin) if verdict is Verdict.PASS else high,
        threshold=margin,
        n=int(n),
        unit=words.unit,
        needed={Verdict.PASS: 0, Verdict.FAIL: None}.get(verdict, needed),
        progress=progress(peaks["ttft.tail_below"], context.alpha),
        details={
            "slow_from_seconds": limit,
            "requests_per_unit": words.per_unit,
            "slow_from": "slo" if context.gates.ttft_slo_seconds is not None else "baseline_p95",
            **{name.removeprefix("tail."): int(sums[name]) for name in COUNTS},
        },
    )


def _nothing(context: Context, limit: float | None) -> GateEvidence:
    if context.calibration is None and limit is None:
        reason, sentence = "calibrating", "The first requests of the attempt fix from when on a first token is slow."
    elif limit is None:
        sentence = (
            f"Fewer than {MIN_TIMED} calibrating {wording(context).unit} were timed, too few to say what slow is: set "
            "`gates.ttft_slo`, or raise `shadow.calibration_requests` for the next attempt."
        )
        reason = "no_threshold"
    else:
        reason, sentence = "not_yet", f"{wording(context).none_yet} since a first token over {limit:.3g} s is slow."
    return GateEvidence(
        GATE,
        GateRole.ECONOMY,
        Verdict.INCONCLUSIVE,
        reason,
        sentence,
        threshold=context.gates.ttft_tail_margin,
        unit=wording(context).unit,
        progress=0.0,
    )


def _outcomes(sums: Sums) -> tuple[tuple[float, float], ...]:
    """(D, how often)."""
    same = sums["tail.both"] + sums["tail.neither"]
    return (1.0, sums["tail.only_candidate"]), (-1.0, sums["tail.only_baseline"]), (0.0, same)
