"""Seeded runs of whole attempts in world A: fold request by request, stop at a kill, look at the certificates at the end.

A run is an attempt as in production: its first 20 requests calibrate, every later pair is computed against that record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from canary.domain.pairs import DrafterKind, Pair
from canary.domain.policy import Gates
from canary.stats.bank import Bank
from canary.stats.battery import Battery, pack
from canary.stats.calibration import calibrate
from canary.stats.certificates import Certificates
from canary.stats.components import Components
from canary.stats.part import Context
from canary.stats.pit import Pit
from tests.stats.world import CALIBRATING, LENGTH, Engine, Item, Run, World, context_of, pair_of

TOGETHER = 8  # pairs that are worked out together
BATCH = 10  # runs that are simulated side by side
NUM_PAIRS = 40  # of the run that tests of the fold share

Setting = tuple[Battery, list[Pair], list[Item]]  # see `conftest.setting`


@dataclass(frozen=True)
class Outcome:
    """How one run ended.

    Args:
        killed_at: tokens folded when the kill e-value crossed, None if it never did.
        reason: of the losslessness gate at the end.
        peaks: largest log of every e-process, `part.key`.
        certified: names of the gates that passed at the end.
        log_e_peak: largest log of the kill e-value.
    """

    killed_at: int | None
    reason: str
    peaks: dict[str, float]
    certified: frozenset[str]
    log_e_peak: float


def battery_of(context: Context) -> Battery:
    """The losslessness parts alone, which are what this world speaks about."""
    return Battery(context, (Bank(), Pit(), Certificates(), Components()))


def attempts(
    engine: Engine, runs: int, requests: int, seed: int, gates: Gates | None = None
) -> Iterator[tuple[Context, list[Pair]]]:
    """Per run, its calibrated context and all its pairs in ordinal order, the calibrating ones first."""
    context = context_of(engine.kind, gates, engine.scheme)
    plain_engine = Engine(engine.world, DrafterKind.ONE_HOT, k=0)
    for at in range(0, runs, BATCH):
        size = min(BATCH, runs - at)
        first = engine.run(size * CALIBRATING, seed + 3 * at, want_tv=True)
        plain = plain_engine.run(size * CALIBRATING, seed + 3 * at + 1)
        rest = engine.run(size * (requests - CALIBRATING), seed + 3 * at + 2)
        for i in range(size):
            calibrating = _pairs(first, i, CALIBRATING, 0, plain)
            record = calibrate(calibrating, context)
            yield (
                replace(context, calibration=record),
                calibrating + _pairs(rest, i, requests - CALIBRATING, CALIBRATING, None, record.hash),
            )


def _pairs(run: Run, block: int, size: int, first_ordinal: int, plain: Run | None, calibration_hash: str = "") -> list[Pair]:
    """One run's share of requests that were simulated side by side."""
    found = []
    for offset in range(size):
        request = block * size + offset
        tokens = (0,) if plain is None else tuple(plain.tokens[request].tolist())
        found.append(pair_of(run, request, first_ordinal + offset, tokens, calibration_hash))
    return found


def items(context: Context, pairs: list[Pair]) -> Iterator[Item]:
    """The pairs as stored: increments against the record that each names."""
    before, after = battery_of(replace(context, calibration=None)), battery_of(context)
    yield from stored(before, [pair for pair in pairs if not pair.calibration_hash])
    yield from stored(after, [pair for pair in pairs if pair.calibration_hash])


def stored(battery: Battery, pairs: Sequence[Pair]) -> Iterator[Item]:
    """Pairs of one calibration as a worker stores them, a few at a time.

    Raises:
        ValueError: a pair was set aside, so the simulation is not what it should be.
    """
    for at in range(0, len(pairs), TOGETHER):
        some = pairs[at : at + TOGETHER]
        for pair, (why, found) in zip(some, battery.examine(some), strict=True):
            if found is None:
                raise ValueError(f"ordinal {pair.ordinal} was set aside: {why}")
            yield Item(pair.ordinal, pack(found), pair.calibration_hash, float(pair.ordinal))


def play(context: Context, pairs: list[Pair], *, stop_at_kill: bool = True) -> Outcome:
    """Fold one run, one ordinal at a time."""
    battery = battery_of(context)
    state, killed_at = battery.start(), None
    for item in items(context, pairs):
        state = battery.fold(state, [item])
        assert state.kill_peak is not None
        if killed_at is None and state.kill_peak >= math.log(1 / context.alpha):
            killed_at = state.folded * LENGTH
            if stop_at_kill:
                break
    gates = battery.assess(state)
    assert state.kill_peak is not None
    return Outcome(
        killed_at=killed_at,
        reason=gates[0].reason,
        peaks=dict(state.peaks),
        certified=frozenset(g.gate for g in gates[1:] if g.verdict == "pass"),
        log_e_peak=state.kill_peak,
    )


def kills(world: World, kind: DrafterKind, fault: str | None, runs: int, tokens: int, seed: int) -> list[Outcome]:
    """Runs of up to `tokens` tokens with or without a fault."""
    engine = Engine(world, kind, fault)
    return [play(*attempt) for attempt in attempts(engine, runs, tokens // LENGTH, seed)]


def at_margin(
    world: World, kind: DrafterKind, alternative: str, runs: int, tokens: int, seed: int, gates: Gates
) -> list[Outcome]:
    """Runs whose tokens come from rows that are contaminated by exactly the margin."""
    share = gates.margin / realised_distance(world, kind, alternative)
    engine = Engine(world, kind, true_rows=world.contaminated(alternative, share, kind))
    return [play(*attempt, stop_at_kill=False) for attempt in attempts(engine, runs, tokens // LENGTH, seed, gates)]


def realised_distance(world: World, kind: DrafterKind, alternative: str) -> float:
    """Mean TV(p, a) per emitted token, over many clean requests."""
    context = context_of(kind)
    run = Engine(world, kind).run(300, 99, want_tv=True)
    return calibrate([pair_of(run, i, i, (0,)) for i in range(300)], context).tv[alternative]
