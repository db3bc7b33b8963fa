"""The gates on live traffic: each reads its numbers from the folded observations and says what they show.

Failing errors kill; a failing economy gate may take traffic off, because it was measured on the very traffic. Nothing here
passes for want of data, and a finding that has grown old is no finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from canary.domain.evidence import GateEvidence, GateRole, Source, Verdict
from canary.domain.facts import DRIFT_GATE
from canary.stats import drift_gate
from canary.stats.bounded import highest_excluded, log_budget, lowest_excluded, progress
from canary.stats.live import MAX_DRAFTED, SAFETY, LiveContext, LiveState
from canary.stats.live_drift import limit_of
from canary.stats.live_tracks import LIVE_BETS, Track
from canary.stats.recorded_gate import REASONS, SUSPICIOUS, gate_at_full

HEARD = ("stage", "candidate_requests", "newest_at", "left_out")  # details of every live gate
ALONE = ("acceptance", DRIFT_GATE, "memory")
GRID = np.arange(4, 197) / 200
ARMS = ("baseline", "candidate")

Found = tuple[Verdict, str, str]


@dataclass(frozen=True, slots=True)
class Wording:
    """How a gate speaks.

    Args:
        fact: what its value is, with `{value}`; the threshold follows.
        shown: turns the mean of its track, and its bounds, into the value's unit; it may turn the order round.
        worse, better: reasons of a failure and of a pass.
    """

    fact: str
    shown: Callable[[float], float] = float
    worse: str = "worse"
    better: str = "not_worse"


WORDING: Mapping[str, Wording] = {
    "errors": Wording("the candidate's share of failed requests is {value:+.4f} from the baseline's"),
    "structured_validity": Wording("the candidate's share of invalid answers is {value:+.4f} from the baseline's"),
    "task_success": Wording("the candidate's share of successful tasks is {value:+.4f} from the baseline's"),
    "thumbs": Wording("the candidate's share of thumbs up is {value:+.4f} from the baseline's"),
    "speed": Wording("the candidate is {value:.3f} times as fast per token", math.exp, "slower", "faster"),
    "ttft": Wording("the candidate's first token takes {value:.3f} times as long", lambda mean: math.exp(-mean)),
    "acceptance": Wording("{value:.3f} of the draft tokens were accepted", worse="below_floor", better="above_floor"),
    "memory": Wording("{value:.3f} of the memory is free with the candidate", worse="below_floor", better="above_floor"),
}


def judge(context: LiveContext, state: LiveState, asked: Sequence[str], now: float, fresh_seconds: float) -> list[GateEvidence]:
    """The live gates that a stage asks for, in its order.

    Args:
        now: seconds since the epoch.
        fresh_seconds: age from which the newest observation is too old to speak.
    """
    kinds = {DRIFT_GATE: _drift}
    return [kinds.get(name, _gate)(context, state, name, now, fresh_seconds) for name in asked]


def _gate(context: LiveContext, state: LiveState, name: str, now: float, fresh_seconds: float) -> GateEvidence:
    track, words = state.tracks.get(name, Track()), WORDING[name]
    safety = name in SAFETY
    alpha = context.safety_alpha if safety else context.alpha
    bounds = context.bounds(name)
    value, low, high = _value(context, state, name, track, alpha)
    facts = _facts(state, name, words, value)
    at_full = safety and state.stage == context.full
    found = _unheard(context, state, name, now, fresh_seconds, alone=at_full)
    if at_full:
        return gate_at_full(context, state, name, found, _proven(context, name, track, facts))
    if safety:
        found = _safety(context, state, name, track, facts, found)
    else:
        found = _economy(context, track, words, facts, found)
    verdict, reason, sentence = found
    edges = sorted(words.shown(edge) for edge in (low, high)) if low is not None and high is not None else (None, None)
    seen = state.seen.get(name, (0, 0))
    return GateEvidence(
        name,
        GateRole.SAFETY if safety else GateRole.ECONOMY,
        verdict,
        reason,
        sentence,
        value=None if value is None else words.shown(value),
        low=edges[0],
        high=edges[1],
        threshold=words.shown(bounds.threshold),
        n=seen[1],
        needed=_needed(context, track, verdict, reason, seen, safety),
        progress=min(seen[1] / context.live.min_requests, 1.0) if safety else progress(track.peak_above, alpha),
        source=Source.LIVE,
        details=_details(context, state, name, track, alpha),
    )


def _drift(context: LiveContext, state: LiveState, name: str, now: float, fresh_seconds: float) -> GateEvidence:
    """The gate on a fall in acceptance: a confirmed one needs no more traffic, a quiet one does."""
    gates = context.gates
    found = drift_gate.live(gates.acceptance_drift_margin, limit_of(gates), context.reference, state.drifts)
    heard = {key: value for key, value in _details(context, state, name, Track(), context.alpha).items() if key in HEARD}
    found = replace(found, details={**found.details, **heard})
    unheard = _unheard(context, state, name, now, fresh_seconds)
    if found.verdict is not Verdict.PASS or unheard is None:
        return found
    verdict, reason, sentence = unheard
    short = context.live.min_requests - state.seen.get(name, (0, 0))[1]
    return replace(found, verdict=verdict, reason=reason, sentence=sentence, needed=short if short > 0 else None)


def _unheard(
    context: LiveContext, state: LiveState, name: str, now: float, fresh_seconds: float, *, alone: bool = False
) -> Found | None:
    """Why a gate cannot pass, whatever its bets say: no traffic, none lately, or too little; `alone`: on the candidate."""
    arms = ARMS[1:] if alone or name in ALONE else ARMS
    seen = dict(zip(ARMS, state.seen.get(name, (0, 0)), strict=True))
    newest = dict(zip(ARMS, state.newest.get(name, (0.0, 0.0)), strict=True))
    for arm in arms:
        if not seen[arm]:
            return Verdict.NO_DATA, "no_data", f"No live {arm} request of stage {state.stage} has told about it yet."
    oldest = min(arms, key=newest.__getitem__)
    if now - newest[oldest] > fresh_seconds:
        age = now - newest[oldest]
        sentence = f"The newest live {oldest} request is {age:.0f} s old, the limit is {fresh_seconds:.0f} s."
        return Verdict.NO_DATA, "stale", sentence
    fewest = min(arms, key=seen.__getitem__)
    if seen[fewest] < context.live.min_requests:
        sentence = f"{seen[fewest]} live {fewest} requests, {context.live.min_requests} are needed."
        return Verdict.INCONCLUSIVE, "too_few", sentence
    return None


def _safety(context: LiveContext, state: LiveState, name: str, track: Track, facts: str, unheard: Found | None) -> Found:
    """A proof kills however few the requests; without one the gate passes once there are enough."""
    margin = context.gates.error_margin
    if (proven := _proven(context, name, track, facts)) is not None:
        return proven
    if unheard is not None:
        return unheard
    if track.log_above >= math.log(SUSPICIOUS):
        return Verdict.INCONCLUSIVE, "suspicious", f"{facts}: nearly proven to be over {margin:g}."
    if _excess(state, name) > margin:
        return Verdict.INCONCLUSIVE, "excess_possible", f"{facts}: an excess over {margin:g}, which is not proven."
    return Verdict.PASS, "no_excess", f"{facts}: no sign of an excess over {margin:g}."


def _proven(context: LiveContext, name: str, track: Track, facts: str) -> Found | None:
    """The failure, where the comparison of the variants has ever proven it."""
    if track.peak_above < log_budget(context.safety_alpha):
        return None
    return Verdict.FAIL, REASONS[name], f"{facts}: proven to be over {context.gates.error_margin:g}."


def _economy(context: LiveContext, track: Track, words: Wording, facts: str, unheard: Found | None) -> Found:
    """Both ways need a proof; the one that holds now speaks if both were ever reached."""
    budget = log_budget(context.alpha)
    above, below = track.peak_above >= budget, track.peak_below >= budget
    if below and not (above and track.log_above > track.log_below):
        return Verdict.FAIL, words.worse, f"{facts}: proven to be worse than the threshold."
    if unheard is not None:
        return unheard
    if above:
        return Verdict.PASS, words.better, f"{facts}: proven to be better than the threshold."
    return Verdict.INCONCLUSIVE, "not_yet", f"{facts}: not yet proven to be better than the threshold."


def _value(
    context: LiveContext, state: LiveState, name: str, track: Track, alpha: float
) -> tuple[float | None, float | None, float | None]:
    """The track's mean with its anytime bounds, in the track's own unit; for acceptance the ratio of sums."""
    if not track.n:
        return None, None, None
    if name == "acceptance":
        if not state.counts.get("drafted"):
            return None, None, None
        low, high = _acceptance_interval(state.counts, alpha)
        return state.counts["accepted"] / state.counts["drafted"], low, high
    low, high = track.interval(context.bounds(name), alpha)
    return track.mean, low, high


def _acceptance_interval(counts: Mapping[str, float], alpha: float) -> tuple[float, float]:
    """As in the shadow's acceptance gate: payoffs (A - tD) / 128 over t or over 1 - t at every rate t of a grid."""
    first = (counts["a"] - GRID * counts["d"]) / MAX_DRAFTED
    second = (counts["aa"] - 2 * GRID * counts["ad"] + GRID**2 * counts["dd"]) / MAX_DRAFTED**2
    above = LIVE_BETS.quadratic(first / GRID, second / GRID**2) >= log_budget(alpha)
    below = LIVE_BETS.quadratic(-first / (1 - GRID), second / (1 - GRID) ** 2) >= log_budget(alpha)
    return highest_excluded(GRID, above, 0.0), lowest_excluded(GRID, below, 1.0)


def _facts(state: LiveState, name: str, words: Wording, value: float | None) -> str:
    if value is None:
        return "Nothing was compared yet"
    said = words.fact.format(value=words.shown(value))
    seen = state.seen.get(name, (0, 0))
    over = f"{seen[1]} requests" if name in ALONE else f"{seen[1]} candidate and {seen[0]} baseline requests"
    return f"Live, {said} over {over}"


def _excess(state: LiveState, name: str) -> float:
    """Candidate's rate minus baseline's in this stage; both have requests."""
    (baseline, candidate), (seen_b, seen_c) = state.totals[name], state.seen[name]
    return candidate / seen_c - baseline / seen_b


def _needed(context: LiveContext, track: Track, verdict: Verdict, reason: str, seen: tuple[int, int], safety: bool) -> int | None:
    """Further candidate requests like those so far."""
    if verdict is Verdict.PASS:
        return 0
    short = context.live.min_requests - seen[1]
    if safety or verdict in (Verdict.FAIL, Verdict.NO_DATA):
        return short if short > 0 and verdict is not Verdict.FAIL else None
    more = track.needed("above", context.alpha)
    if more is None or not track.n:
        return short if reason == "too_few" and short > 0 else None
    return max(short, math.ceil(more * seen[1] / track.n), 1)


def _details(context: LiveContext, state: LiveState, name: str, track: Track, alpha: float) -> dict[str, object]:
    seen, totals, newest = (getattr(state, kept).get(name, (0, 0)) for kept in ("seen", "totals", "newest"))
    found: dict[str, object] = {
        "stage": state.stage,
        "candidate_requests": seen[1],
        "baseline_requests": seen[0],
        "comparisons": track.n,
        "e_value_progress": progress(track.peak_above, alpha),
        "newest_at": float(newest[1] if name in ALONE else min(newest)) or None,
        "left_out": dict(state.left_out),
    }
    if name not in (*ALONE, "speed", "ttft"):
        found |= {f"{arm}_rate": totals[at] / seen[at] if seen[at] else None for at, arm in enumerate(ARMS)}
    if name == "errors" and (cut := state.tracks.get("length")) is not None:
        low, high = cut.interval(context.bounds("length"), alpha)
        found["length_excess"] = {"value": cut.mean, "low": low, "high": high}
    if name == "acceptance":
        names = {"accepted": "num_accepted_tokens", "drafted": "num_draft_tokens", "drafts": "num_drafts"}
        found |= {long: int(state.counts.get(short, 0)) for short, long in names.items()}
        if state.counts.get("drafts"):
            found["mean_accepted_tokens"] = state.counts["accepted"] / state.counts["drafts"]
    return found
