"""What live observations add up to: a few numbers per gate, folded in the order of arrival, whatever the length of the history.

It compares the variants' traffic as it is, unpaired. It never decides about traffic, and it never reads an observation that is
about another stage or another engine than the subject.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from canary.domain.errors import ConflictError
from canary.domain.facts import DRIFT_GATE
from canary.domain.live_policy import LiveGates
from canary.domain.observations import Observation
from canary.domain.pairs import Arm
from canary.domain.policy import Gates
from canary.stats import live_drift
from canary.stats.drift import Drift
from canary.stats.live_tracks import Block, Bounds, Centre, Track
from canary.stats.recorded import Recorded
from canary.stats.reference import Reference

VERSION = 2
MAX_DRAFTED = 128  # a request with more draft tokens is scaled down to so many (statistics 4)
REACH = math.log(4)  # seconds are clipped at a quarter and four times the baseline's median
LEFT_OUT = ("early", "other_stage", "other_engine", "calibrating", "without_drafts")

# Safety never restarts within an attempt: its e-processes share one budget, and each restart would spend it again.
SAFETY = ("errors", "structured_validity")

Value = Callable[[Observation], float | None]


def _log(seconds: float | None) -> float | None:
    """Larger is better, as for every compared value but the rates of failure."""
    return None if seconds is None else -math.log(seconds)


def _cut(o: Observation) -> float | None:
    return None if o.finish_reason is None or o.failed else float(o.finish_reason == "length")


# What is compared between the variants: name -> its value in one observation, None where that says nothing.
COMPARED: Mapping[str, Value] = {
    "errors": lambda o: None if o.failed is None else float(o.failed),
    "structured_validity": lambda o: None if o.valid is None else float(not o.valid),
    "length": _cut,
    "task_success": lambda o: None if o.task_success is None else float(o.task_success),
    "thumbs": lambda o: None if o.thumbs is None else (1.0 + o.thumbs) / 2,
    "speed": lambda o: _log(o.seconds_per_token),
    "ttft": lambda o: _log(o.ttft_seconds),
}
CLIPPED = ("speed", "ttft")


@dataclass(frozen=True, slots=True)
class LiveContext:
    """What is frozen when an attempt starts.

    Args:
        alpha: of every economy gate, each way.
        safety_alpha: of each safety gate's e-process.
        engine: the subject's fingerprint.
        reference: what the shadow's drafts accepted; None until it is frozen.
        full: name of the stage that leaves the baseline no traffic.
    """

    gates: Gates
    live: LiveGates
    alpha: float
    safety_alpha: float
    engine: str
    reference: Reference | None = None
    full: str = "full"

    def bounds(self, name: str) -> Bounds:
        """Where a quantity lies and what decides about it."""
        wide = 2 * REACH
        known = {
            "errors": Bounds(-1, 1, self.gates.error_margin),
            "structured_validity": Bounds(-1, 1, self.gates.error_margin),
            "length": Bounds(-1, 1, 0.0),
            "task_success": Bounds(-1, 1, -self.live.success_margin),
            "thumbs": Bounds(-1, 1, -self.live.thumbs_margin),
            "speed": Bounds(-wide, wide, math.log(self.live.speed_ratio)),
            "ttft": Bounds(-wide, wide, -math.log(self.gates.ttft_ratio)),
            "acceptance": Bounds(0, 1, self.gates.acceptance_floor),
            "memory": Bounds(0, 1, self.gates.memory_headroom or 0.5),
        }
        return known[name]


@dataclass(frozen=True, slots=True)
class LiveState:
    """What one stage's observations have added up to.

    Args:
        stage, since: the stage and when it was entered, seconds since the epoch.
        tracks: bets by quantity; blocks, centres: of the compared ones.
        seen, totals: observations and sums of values in this stage, by quantity, baseline first.
        newest: when the newest one was observed, by quantity, baseline first; 0 without one.
        counts: accepted and draft tokens and drafts of the candidate, and the five sums of its acceptance's interval.
        left_out: observations that entered nothing, by reason.
        drifts: detectors of a fall in the candidate's acceptance, by load band.
        recorded: the baseline's failures before full and the candidate's at full, by safety gate; the attempt's, in every stage.
    """

    stage: str
    since: float
    tracks: Mapping[str, Track] = field(default_factory=dict)
    blocks: Mapping[str, Block] = field(default_factory=dict)
    centres: Mapping[str, Centre] = field(default_factory=dict)
    seen: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    totals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    newest: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    drifts: Mapping[str, Drift] = field(default_factory=dict)
    recorded: Mapping[str, Recorded] = field(default_factory=dict)

    def enter(self, stage: str, since: float, *, carry: bool) -> LiveState:
        """The state at another stage's entry: empty but for what safety gates keep, or all of it where the economy is carried."""
        if carry:
            return replace(self, stage=stage, since=since)
        bets = {name: t for name, t in self.tracks.items() if name in SAFETY}
        return LiveState(stage, since, tracks=bets, recorded=self.recorded)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; through text and back every float keeps its bits."""
        return {
            "version": VERSION,
            "stage": self.stage,
            "since": self.since,
            "tracks": {name: t.to_json() for name, t in self.tracks.items()},
            "blocks": {name: [list(b.counts), list(b.sums)] for name, b in self.blocks.items()},
            "centres": {name: [list(c.first), c.value] for name, c in self.centres.items()},
            **{name: {k: list(v) for k, v in getattr(self, name).items()} for name in ("seen", "totals", "newest")},
            "counts": dict(self.counts),
            "left_out": dict(self.left_out),
            "drifts": {band: d.to_json() for band, d in self.drifts.items()},
            "recorded": {name: r.to_json() for name, r in self.recorded.items()},
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> LiveState:
        """The inverse of `to_json`.

        Raises:
            ConflictError: another version wrote it.
        """
        if found["version"] != VERSION:
            raise ConflictError(f"live evidence version is not {VERSION}", where="version", remedy="Open a new attempt.")
        return cls(
            found["stage"],
            found["since"],
            tracks={name: Track.from_json(t) for name, t in found["tracks"].items()},
            blocks={name: Block(tuple(counts), tuple(sums)) for name, (counts, sums) in found["blocks"].items()},
            centres={name: Centre(tuple(first), value) for name, (first, value) in found["centres"].items()},
            **{name: {k: tuple(v) for k, v in found[name].items()} for name in ("seen", "totals", "newest")},
            counts=dict(found["counts"]),
            left_out=dict(found["left_out"]),
            drifts={band: Drift.from_json(d) for band, d in found["drifts"].items()},
            recorded={name: Recorded.from_json(r) for name, r in found["recorded"].items()},
        )


def fold(context: LiveContext, state: LiveState, observations: Iterable[Observation]) -> LiveState:
    """Add observations, one after the other; the given state stays as it was."""
    work = _Work(context, state)
    for observation in observations:
        work.add(observation)
    return work.done()


class _Work:
    """The state while a batch is added to it."""

    def __init__(self, context: LiveContext, state: LiveState) -> None:
        self.context = context
        self.state = state
        self.tracks, self.blocks, self.centres = dict(state.tracks), dict(state.blocks), dict(state.centres)
        self.seen, self.totals, self.newest = dict(state.seen), dict(state.totals), dict(state.newest)
        self.counts, self.left_out, self.drifts = dict(state.counts), dict(state.left_out), dict(state.drifts)
        self.recorded = dict(state.recorded)

    def done(self) -> LiveState:
        return LiveState(
            self.state.stage,
            self.state.since,
            self.tracks,
            self.blocks,
            self.centres,
            self.seen,
            self.totals,
            self.newest,
            self.counts,
            self.left_out,
            self.drifts,
            self.recorded,
        )

    def add(self, o: Observation) -> None:
        if (why := self._elsewhere(o)) is not None:
            self._leave_out(why)
            return
        for name, value in COMPARED.items():
            x = value(o)
            if x is not None:
                self._compare(name, o, x)
        if o.arm is Arm.CANDIDATE:
            self._accept(o)
            if o.memory_headroom is not None:
                self._count("memory", o, o.memory_headroom)
                self._bet("memory", o.memory_headroom)

    def _elsewhere(self, o: Observation) -> str | None:
        """Why an observation is not about this stage and this subject."""
        if o.stage is not None and o.stage != self.state.stage:
            return "other_stage"
        if o.observed_at < self.state.since:
            return "early"
        other = o.arm is Arm.CANDIDATE and o.engine is not None and o.engine != self.context.engine
        return "other_engine" if other else None

    def _compare(self, name: str, o: Observation, x: float) -> None:
        if name in CLIPPED:
            centre = self.centres.get(name, Centre())
            if centre.value is None:
                if o.arm is Arm.BASELINE:
                    self.centres[name] = centre.add(x)
                self._leave_out("calibrating")
                return
            x = centre.clip(x, REACH)
        if name in SAFETY:
            self._record(name, o.arm, bool(x))
        self._count(name, o, x)
        self.blocks[name], difference = self.blocks.get(name, Block()).add(o.arm is Arm.CANDIDATE, x)
        if difference is not None:
            self._bet(name, difference)

    def _record(self, name: str, arm: Arm, failed: bool) -> None:
        """Before full the baseline's failures, at full the candidate's; the others say nothing there."""
        record, at_full = self.recorded.get(name, Recorded()), self.state.stage == self.context.full
        if at_full and arm is Arm.CANDIDATE:
            self.recorded[name] = record.add_candidate(failed, self.context.gates.error_margin, self.context.safety_alpha)
        elif not at_full and arm is Arm.BASELINE:
            self.recorded[name] = record.add_baseline(failed)

    def _accept(self, o: Observation) -> None:
        """As the shadow's acceptance: Z = A - floor * D of a request, with D scaled to at most 128 (statistics 4)."""
        if o.num_draft_tokens is None or o.num_accepted_tokens is None or o.num_drafts is None:
            return
        if o.num_draft_tokens == 0:
            self._leave_out("without_drafts")
            return
        floor, scale = self.context.gates.acceptance_floor, min(1.0, MAX_DRAFTED / o.num_draft_tokens)
        a, d = o.num_accepted_tokens * scale, o.num_draft_tokens * scale
        x = (a - floor * d) / MAX_DRAFTED + floor
        self._count("acceptance", o, x)
        self._bet("acceptance", x)
        found = {"accepted": o.num_accepted_tokens, "drafted": o.num_draft_tokens, "drafts": o.num_drafts}
        for name, amount in {**found, "a": a, "d": d, "aa": a * a, "ad": a * d, "dd": d * d}.items():
            self.counts[name] = self.counts.get(name, 0.0) + amount
        if self.context.reference is not None:
            self._count(DRIFT_GATE, o, o.num_accepted_tokens / o.num_drafts)
            number = self.seen[DRIFT_GATE][1] - 1
            live_drift.add(self.drifts, self.context.gates, self.context.reference, o, number)

    def _bet(self, name: str, x: float) -> None:
        self.tracks[name] = self.tracks.get(name, Track()).add(x, self.context.bounds(name))

    def _count(self, name: str, o: Observation, x: float) -> None:
        at = int(o.arm is Arm.CANDIDATE)
        seen, totals, newest = (list(kept.get(name, (0, 0))) for kept in (self.seen, self.totals, self.newest))
        seen[at] += 1
        totals[at] += x
        newest[at] = max(newest[at], o.observed_at)
        self.seen[name] = (int(seen[0]), int(seen[1]))
        self.totals[name] = (float(totals[0]), float(totals[1]))
        self.newest[name] = (float(newest[0]), float(newest[1]))

    def _leave_out(self, why: str) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + 1
