"""Simulated A/A pairs: world A's target against itself, with a clock and errors that are fair unless a test says otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from canary.domain.pairs import ALTERNATIVES, Arm, Columns, DecodeStats, DrafterKind, Generation, Pair, Timing
from canary.stats.battery import Battery
from canary.stats.control import control_battery
from canary.stats.state import State
from tests.stats.experiments import stored
from tests.stats.make import CALIBRATION
from tests.stats.world import LENGTH, Engine, World, context_of, pair_of

Break = Callable[[Pair, random.Random], Pair]
ERROR_RATE = 0.02


@dataclass(frozen=True)
class Item:
    """What the fold reads of a stored pair, with whose it is."""

    ordinal: int
    increments: bytes | None
    calibration_hash: str = ""
    stored_at: float = 0.0
    control: bool = False


def battery() -> Battery:
    """The A/A arm's battery in world A, calibrated."""
    return control_battery(replace(context_of(DrafterKind.ONE_HOT), calibration=CALIBRATION))


def pairs(world: World, requests: int, seed: int, broken: Break = lambda pair, _: pair) -> list[Pair]:
    """A/A pairs in ordinal order; what is broken in the harness is done to each of them."""
    return next(runs(world, 1, requests, seed, broken))


def runs(world: World, count: int, requests: int, seed: int, broken: Break = lambda pair, _: pair) -> Iterator[list[Pair]]:
    """Several runs, simulated side by side."""
    made = Engine(world, DrafterKind.ONE_HOT, k=0).run(count * requests, seed)
    for first in range(0, count * requests, requests):
        draw = random.Random(seed + first)
        yield [broken(_fair(pair_of(made, first + i, i, (1, 2), CALIBRATION.hash), draw), draw) for i in range(requests)]


def _fair(pair: Pair, draw: random.Random) -> Pair:
    plain = DecodeStats(0, (0,) * LENGTH, (0,) * LENGTH)
    candidate = replace(pair.candidate, stats=plain)
    baseline = pair.baseline
    if draw.random() < ERROR_RATE:
        candidate = failed(Arm.CANDIDATE)
    if draw.random() < ERROR_RATE:
        baseline = failed(Arm.BASELINE)
    seconds = [draw.lognormvariate(0.0, 0.3) for _ in Arm]
    timings = [Timing(0.1, 0.1 + s, 41) for s in seconds]
    return replace(
        pair, baseline=baseline, candidate=candidate, baseline_timing=timings[0], candidate_timing=timings[1], control=True
    )


def failed(arm: Arm) -> Generation:
    """An arm that ran out of memory."""
    return Generation(arm, (), "", "error", DecodeStats(0, (), ()), error="out of memory")


def off_by_one(pair: Pair, draw: random.Random) -> Pair:
    """A trace that reduces the row of the position before: the PIT and the ratios are of rows that nothing was drawn from."""
    trace = pair.candidate.trace
    if trace is None:
        return pair
    shift = np.frombuffer(trace.data["log_ratio"], "<f4").reshape(trace.num_tokens, -1)[:, ALTERNATIVES.index("shift")]
    ratio = np.zeros((trace.num_tokens, len(ALTERNATIVES)), "<f4")
    ratio[:, ALTERNATIVES.index("shift")] = -shift  # the drawn row is now the alternative and the row before the supposed target
    data = {**trace.data, "log_ratio": ratio.tobytes()}
    return replace(pair, candidate=replace(pair.candidate, trace=Columns(trace.num_tokens, data)))


def slow_second_seat(pair: Pair, draw: random.Random) -> Pair:
    """A clock that counts something else into the candidate's passes, a third of their time."""
    timing = pair.candidate_timing
    assert timing is not None
    slower = timing.ttft_seconds + 1.33 * (timing.total_seconds - timing.ttft_seconds)
    return replace(pair, candidate_timing=replace(timing, total_seconds=slower))


def failing_seat(pair: Pair, draw: random.Random) -> Pair:
    """Batching that breaks one request in four at the control batch size."""
    return replace(pair, candidate=failed(Arm.CANDIDATE)) if draw.random() < 0.25 else pair


def fold(built: Battery, found: Sequence[Pair]) -> State:
    """The state after the pairs."""
    return built.fold(built.start(), stored(built, found))


def log_peaks(world: World, count: int, requests: int, seed: int) -> list[float]:
    """Largest log of the control's e-value in each of so many fair runs."""
    built = battery()
    return [fold(built, found).kill_peak or 0.0 for found in runs(world, count, requests, seed)]
