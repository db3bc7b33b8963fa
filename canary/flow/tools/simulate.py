"""What another policy would have decided on a route's stored pairs, and when: the same fold, `decide` and `step`, at their times.

It reads one transaction and writes nothing. What people ordered is not replayed, and live gates are those of the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from canary.domain.decide import Decision, decide
from canary.domain.errors import NotFoundError, UsageError
from canary.domain.evidence import Evidence, GateEvidence
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout, State
from canary.domain.step import Step, step
from canary.flow import drills
from canary.flow.attempt import calibrated, context, controlled, engine_of, pinned_policy, rollout_of
from canary.flow.economy import opened
from canary.flow.ports import EngineInfo, FoldItem, Store, Transaction
from canary.flow.tools.recorded import Recorded, recorded
from canary.stats.battery import pack
from canary.stats.calibration import calibrate
from canary.stats.controlled import ControlledBattery

PAGE = 250  # pairs read at a time
LOOKS = 400  # moments at which the gates are assessed, at most; between them only clocks move
QUIET_LOOKS = 2_000  # decisions between two such moments, at most
NOTES = (
    "People's orders are not replayed: nobody approves, pauses or retries.",
    "Live gates are those that the log holds for the stage of that name; a stage that the route was not in has none.",
    "The mirrored share is not compared with its plan, since its counts have no times.",
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A decision that was new: of another kind or reason, or in another place.

    Args:
        at: seconds since the epoch.
        weight: basis points afterwards; None where the log does not hold it.
    """

    at: float
    folded: int
    state: str
    stage: str
    weight: int | None
    kind: str
    reason: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Simulation:
    """What would have been decided, beside what was.

    Args:
        unreadable: pairs that can no longer be judged, since their content is past its lifetime; they count as lost.
        same: whether the newest kind, reason and state are those of the log.
    """

    route: str
    epoch: str
    attempt: int
    pairs: int
    unreadable: int
    would: tuple[Moment, ...]
    was: tuple[Moment, ...]
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        ends = [(m.kind, m.reason, m.state) for line in (self.would, self.was) for m in line[-1:]]
        return len(ends) == 2 and ends[0] == ends[1]


def simulate(store: Store, policy: Policy, route: str, *, attempt: int | None = None) -> Simulation:
    """Replay one attempt of a route's present epoch under a policy.

    Args:
        policy: any for the same subject; its route's name does not matter.
        attempt: the present one by default.

    Raises:
        NotFoundError: there is no such route, or no evidence of that attempt.
        UsageError: the policy is about another subject, of which the stored pairs say nothing.
    """
    with store.transaction() as tx:
        rollout = rollout_of(tx, route)
        rollout = rollout if attempt is None else replace(rollout, attempt=attempt)
        record: Any = tx.evidence.get(route, rollout.epoch, rollout.attempt)
        if record is None:
            known = ", ".join(map(str, tx.evidence.attempts(route, rollout.epoch))) or "none"
            raise NotFoundError(
                f"attempt {rollout.attempt} of this epoch has no evidence (attempts that have: {known})",
                where=f"rollouts/{route}",
                remedy="Name one with --attempt, or run a worker first.",
            )
        pinned = pinned_policy(tx, rollout)
        if policy.subject != pinned.subject:
            raise UsageError(
                "the policy's subject is not the one whose pairs are stored",
                where="subject",
                remedy="Simulate a policy with the route's own subject, or gather evidence about the other one.",
            )
        replay = _Replay(tx, replace(policy, route=route), pinned, rollout, engine_of(record["engine"]))
        would = tuple(replay.moments())
    return Simulation(
        route, rollout.epoch, rollout.attempt, replay.pairs, replay.unreadable, would, _was(replay.recorded, pinned), NOTES
    )


class _Replay:
    """One attempt, folded again in the order and at the times at which it was stored."""

    def __init__(self, tx: Transaction, policy: Policy, pinned: Policy, rollout: Rollout, engine: EngineInfo) -> None:
        self._tx, self._policy, self._engine = tx, policy, engine
        self._key = (rollout.route, rollout.epoch, rollout.attempt)
        self._stages = [stage.name for stage in pinned.stages]
        self._began, self.recorded = recorded(tx, *self._key)
        self.pairs = self.unreadable = 0
        # Only the requests that calibrated were traced with distances.
        self._calibrating = min(policy.shadow.calibration_requests, pinned.shadow.calibration_requests)
        plain = context(policy, rollout.attempt, engine, None)
        first = tx.pairs.first(*self._key, self._calibrating)
        usable = [pair for pair in first or () if pair is None or not pair.control]
        self._plain = controlled(policy, plain)
        self._built = self._plain if first is None else controlled(policy, calibrated(plain, calibrate(usable, plain)))

    def moments(self) -> Iterator[Moment]:
        """What is decided, whenever it is new."""
        items = list(self._items())
        if not items:
            return
        route, epoch, attempt = self._key
        entered = items[0].stored_at if self._began is None else self._began
        self._rollout = Rollout(route, self._policy.content_hash, State.SHADOW, 0, epoch, attempt, entered_at=entered)
        self._state, self._record, seen = self._built.start(), dict[str, Any](), None
        for some, end in self._looks(items):
            found = self._folded(some)
            for now in _clock(some[-1].stored_at, end, self._policy.limits.bake_gap_seconds):
                stepped, decision = self._decided(found, now)
                self._rollout = stepped.rollout
                place = (decision.kind, decision.reason, self._rollout.state, self._rollout.stage)
                if place != seen:
                    seen = place
                    yield _moment(stepped, decision, found, self._policy, now)
                if self._rollout.killed or self._rollout.state is State.ROLLED_BACK:
                    return

    def _looks(self, items: Sequence[FoldItem]) -> Iterator[tuple[Sequence[FoldItem], float]]:
        """What is folded at once, and until when that is all there is; after the last, until the log's last decision."""
        size, start = max(1, math.ceil(len(items) / LOOKS)), 0
        while start < len(items):
            stop = min(start + size, len(items))
            while stop < len(items) and items[stop].stored_at == items[stop - 1].stored_at:
                stop += 1
            end = items[stop].stored_at if stop < len(items) else max((one.at for one in self.recorded), default=0.0)
            yield items[start:stop], end
            start = stop

    def _folded(self, some: Sequence[FoldItem]) -> Evidence:
        built, state = self._built, self._state
        economy = opened(built, self._policy, self._rollout, self._record, state.folded).fold(some)
        self._state, self._record = built.fold(state, some), {**self._record, **economy.to_json()}
        main = self._state.main
        return Evidence(
            *self._key,
            folded=self._state.folded,
            num_pairs=main.num_pairs,
            num_failed=main.num_failed,
            gates=economy.judge(built.assess(self._state)),
            subject=self._key[1],
            engine=self._engine.fingerprint,
            assessed_at=some[-1].stored_at,
            newest_pair_at=main.newest_pair_at,
            num_control=self._state.control.num_pairs,
        )

    def _decided(self, found: Evidence, now: float) -> tuple[Step, Decision]:
        rollout, policy = self._rollout, self._policy
        stage = policy.stages[rollout.stage].name
        before = [one for one in self.recorded if one.at <= now and self._stages[one.stage] == stage]
        live = before[-1].live if before else ()
        asked = self._drilled(now) if rollout.stage == 0 else ()
        decision = decide(rollout, policy, replace(found, gates=(*found.gates, *live, *asked), assessed_at=now), now)
        return step(rollout, policy, decision, now), decision

    def _drilled(self, now: float) -> tuple[GateEvidence, ...]:
        """The gate `drill` on the drills that had been run by then."""
        names = drills.required(self._policy)
        if not names:
            return ()
        events: list[dict[str, Any]] = list(self._tx.audit.list(self._key[0], drills.MOST_EVENTS, kind=drills.AUDIT_KIND))
        ran = [event for event in events if float(event["at"]) <= now]
        return (drills.judge(names, ran, self._key[1], self._policy.drills.max_age_seconds, now),)

    def _items(self) -> Iterator[FoldItem]:
        """Every finished ordinal with its increments under this policy."""
        after = 0
        while found := self._tx.pairs.contiguous(*self._key, after=after, limit=PAGE):
            yield from self._judged(found)
            after += len(found)

    def _judged(self, found: Sequence[FoldItem]) -> list[FoldItem]:
        pairs = {p.ordinal: p for p in self._tx.pairs.page(*self._key, after=found[0].ordinal - 1, limit=len(found))}
        made = []
        for item in found:
            built: ControlledBattery = self._plain if item.ordinal < self._calibrating else self._built
            pair, battery = pairs.get(item.ordinal), built.of(control=item.control)
            increments = None if pair is None or pair.error is not None else battery.increments(pair)
            self.pairs += pair is not None
            self.unreadable += increments is None and item.increments is not None
            block = None if increments is None else pack(increments)
            made.append(replace(item, increments=block, calibration_hash=battery.calibration_hash if block else ""))
        return made


def _clock(first: float, end: float, gap: float) -> Iterator[float]:
    """Moments from `first` until `end`, no further apart than what a bake counts of one interval where there are few enough."""
    yield first
    every = max(gap, (end - first) / QUIET_LOOKS)
    now = first + every
    while now < end:
        yield now
        now += every
    if end > first:
        yield end


def _moment(stepped: Step, decision: Decision, found: Evidence, policy: Policy, at: float) -> Moment:
    rollout = stepped.rollout
    state = "killed" if rollout.killed else rollout.state.value
    stage = policy.stages[rollout.stage].name
    what = (decision.kind.value, decision.reason, decision.sentence)
    return Moment(at, found.folded, state, stage, stepped.flag_weight, *what)


def _was(events: Sequence[Recorded], pinned: Policy) -> tuple[Moment, ...]:
    names = [stage.name for stage in pinned.stages]
    return tuple(Moment(e.at, e.folded, e.state, names[e.stage], None, e.kind, e.reason, e.sentence) for e in events)
