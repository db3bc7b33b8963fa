"""One faulty run of forty requests with two tombstones, shared because simulating it takes seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.pairs import DrafterKind
from tests.stats.experiments import NUM_PAIRS, Setting, attempts, battery_of, items
from tests.stats.world import Engine, World


@pytest.fixture(scope="session")
def setting() -> Setting:
    engine = Engine(World.make(), DrafterKind.DENSE, "resample_from_target")
    context, pairs = next(attempts(engine, 1, NUM_PAIRS, seed=5))
    stored = list(items(context, pairs))
    stored[7] = replace(stored[7], increments=None, calibration_hash="")  # tombstones, before and after calibration
    stored[30] = replace(stored[30], increments=None, calibration_hash="")
    return battery_of(context), pairs, stored
