"""Tokens that the shipped battery needs: the engine's own trace, the whole battery, one fold per request, stop at the kill.

Nothing here weighs evidence by another rule than `losslessness`; a look after every request is what production does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from canary.domain.pairs import DrafterKind, Pair
from canary.stats.battery import Battery
from canary.stats.part import Context
from canary.stats.state import State
from tests.bench.worlds import FaultyEngine, Inject
from tests.stats.experiments import attempts, stored
from tests.stats.world import LENGTH, World


def walk(context: Context, pairs: list[Pair]) -> Iterator[tuple[Battery, State]]:
    """Fold one attempt request by request: the battery and its state after each; it calibrates first."""
    after, before = Battery(context), Battery(replace(context, calibration=None))
    state, calibrating = after.start(), sum(not pair.calibration_hash for pair in pairs)
    for item in chain(stored(before, pairs[:calibrating]), stored(after, pairs[calibrating:])):
        state = after.fold(state, [item])
        yield after, state


def tokens_to_kill(context: Context, pairs: list[Pair]) -> int | None:
    """Tokens folded when the losslessness e-value crossed, None if it never did."""
    limit = math.log(1 / context.alpha)
    crossed = (state for _, state in walk(context, pairs) if state.kill_peak is not None and state.kill_peak >= limit)
    state = next(crossed, None)
    return None if state is None else state.folded * LENGTH


def wealth(world: World, inject: Inject | None, tokens: int, seed: int) -> tuple[list[int], list[float], str]:
    """One attempt as it unfolds: tokens so far, log of the losslessness e-value, and the reason of its gate at the end."""
    engine = FaultyEngine(world, DrafterKind.DENSE, inject=inject)
    context, pairs = next(attempts(engine, 1, tokens // LENGTH, seed))
    seen, logs, reason = [0], [0.0], ""
    for battery, state in walk(context, pairs):
        gate = battery.assess(state)[0]
        seen.append(state.folded * LENGTH)
        logs.append(float(gate.details["log_e"]))
        reason = gate.reason
    return seen, logs, reason


def kills(world: World, inject: Inject | None, runs: int, tokens: int, seed: int) -> Iterator[int | None]:
    """Tokens to the kill of independent attempts of up to `tokens` tokens each."""
    engine = FaultyEngine(world, DrafterKind.DENSE, inject=inject)
    for context, pairs in attempts(engine, runs, max(tokens // LENGTH, 21), seed):
        yield tokens_to_kill(context, pairs)
