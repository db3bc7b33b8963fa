"""Component tests at full size: alarms of an exact engine, and tokens until a fault is proven by a test that is for it.

Budgets are twice the medians of statistics section 6 (world A); where no component test stood there, those of the whole battery.
"""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch

from canary.domain.pairs import DrafterKind
from canary.stats.components import Components
from tests.prove.default_policy import SharedNoise
from tests.stats.world import LENGTH, Engine, World, context_of, pair_of

pytestmark = [pytest.mark.prove, pytest.mark.timeout(7200)]

RUNS, REQUESTS, CLEAN_RUNS, CLEAN_REQUESTS = 30, 60, 100, 50
GOAL = math.log(100)

# fault -> twice the median number of tokens until a component test passes 1 / alpha
BUDGETS = {
    "greedy_draft_softmax_q": 768,
    "uniform_zero": 768,
    "resample_from_target": 192,
    "residual_argmax": 192,
    "accept_iff_argmax": 192,
    "accept_if_equal": 192,
    "typical_acceptance": 24_192,
    "generous_acceptance": 10_944,
    "bonus_from_draft": 768,
    "accept_uniform_reused": 1_344,
}
SHARED_NOISE_BUDGET = 8_640  # of a fault that the simulated engine has no wrapper for


@pytest.fixture(scope="module")
def world() -> World:
    torch.set_num_threads(1)
    return World.make()


def wealth(engine: Engine, runs: int, requests: int, seed: int) -> dict[str, np.ndarray]:
    """Log of every e-process after every request, [runs, requests]."""
    part, context = Components(), context_of(engine.kind)
    run = engine.run(runs * requests, seed)
    rows = [part.increments(context, pair_of(run, i, i, (0,))) for i in range(runs * requests)]
    sums = np.cumsum(np.array(rows).reshape(runs, requests, -1), axis=1)
    return {key: np.asarray(value) for key, value in part.log_e(context, sums).items()}


@pytest.mark.parametrize("kind", list(DrafterKind))
def test_an_exact_engine_hardly_ever_alarms(world: World, kind: DrafterKind) -> None:
    """An e-process passes 100 in at most 1 % of runs; more than 4 of 100 have probability .003 at that rate."""
    found = wealth(Engine(world, kind), CLEAN_RUNS, CLEAN_REQUESTS, 4_000_000)
    alarms = {key: int((value.max(axis=1) >= GOAL).sum()) for key, value in found.items()}
    print(f"\n{kind}: runs of {CLEAN_REQUESTS * LENGTH} tokens above 100, of {CLEAN_RUNS}: {alarms}")
    assert max(alarms.values()) <= 4


@pytest.mark.parametrize("fault", BUDGETS)
def test_faults_are_proven_within_their_budget(world: World, fault: str) -> None:
    _within(fault, Engine(world, DrafterKind.DENSE, fault), RUNS, REQUESTS, BUDGETS[fault])


def test_noise_shared_between_draft_and_recovery_is_proven_within_its_budget(world: World) -> None:
    _within("shared_noise", SharedNoise(world).engine(), 20, SHARED_NOISE_BUDGET // LENGTH, SHARED_NOISE_BUDGET)


def _within(fault: str, engine: Engine, runs: int, requests: int, budget: int) -> None:
    """Half of the runs prove the fault by one and the same component test within the budget."""
    medians = {}
    for key, value in wealth(engine, runs, requests, 5_000_000).items():
        above = value >= GOAL
        first = np.where(above.any(axis=1), above.argmax(axis=1) + 1, 10**6)
        medians[key] = statistics.median(first.tolist()) * LENGTH
    best = min(medians, key=lambda key: medians[key])
    print(f"\n{fault}: {best} after {medians[best]:.0f} tokens (budget {budget})")
    assert medians[best] <= budget
