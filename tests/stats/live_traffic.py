"""Seeded live traffic of two variants, and the fold over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from canary.domain.evidence import GateEvidence, Verdict
from canary.domain.live_policy import LiveGates
from canary.domain.observations import Observation
from canary.domain.pairs import Arm
from canary.domain.policy import Gates
from canary.stats.bounded import log_budget
from canary.stats.live import SAFETY, LiveContext, LiveState, fold
from canary.stats.live_gates import judge

SINCE = 1_000.0
CONTEXT = LiveContext(Gates(acceptance_floor=0.5, memory_headroom=0.1), LiveGates(), alpha=0.01, safety_alpha=0.005, engine="e")
START = LiveState("canary-5", SINCE)

Draw = Callable[[np.random.Generator, Arm], dict[str, Any]]


def seen(number: int, arm: Arm, **measured: Any) -> Observation:
    """One observation, a second after the one before."""
    return Observation("math", f"o{number}", arm, SINCE + number, **measured)


def traffic(seed: int, count: int, draw: Draw, share: float = 0.5) -> Iterator[Observation]:
    """Requests of which a `share` is on the candidate; `draw` says what each measured."""
    dice = np.random.default_rng(seed)
    for number in range(count):
        arm = Arm.CANDIDATE if dice.random() < share else Arm.BASELINE
        yield seen(number, arm, **draw(dice, arm))


def gate(name: str, observations: Iterable[Observation], context: LiveContext = CONTEXT) -> GateEvidence:
    """The gate after all of them, judged a second after the newest."""
    state = fold(context, START, observations)
    newest = max((max(pair) for pair in state.newest.values()), default=SINCE)
    (found,) = judge(context, state, [name], newest + 1, 3600.0)
    return found


def decided_at(name: str, observations: Iterable[Observation], verdict: Verdict, context: LiveContext = CONTEXT) -> int | None:
    """Candidate requests after which the gate first has the verdict; looked at after every crossing."""
    state, candidates = START, 0
    needed = log_budget(context.safety_alpha if name in SAFETY else context.alpha)
    for observation in observations:
        state = fold(context, state, [observation])
        if observation.arm is Arm.CANDIDATE:
            candidates += 1
            track = state.tracks.get(name)
            if track is None or max(track.peak_above, track.peak_below) < needed:
                continue
            (found,) = judge(context, state, [name], observation.observed_at, 3600.0)
            if found.verdict is verdict:
                return candidates
    return None


def with_live(**changes: float) -> LiveContext:
    return replace(CONTEXT, live=LiveGates(**changes))  # type: ignore[arg-type]
