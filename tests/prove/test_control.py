"""The A/A arm at full size (`-m prove -s` prints its figures); the suite itself runs a tenth of it."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from tests.stats import controls
from tests.stats.world import World

pytestmark = [pytest.mark.prove, pytest.mark.timeout(7200)]


def test_no_fair_harness_of_five_hundred_passes_the_limit() -> None:
    """By Ville each run passes it with a probability of at most .001."""
    torch.set_num_threads(1)
    world = World.make()
    peaks = [peak for block in range(25) for peak in controls.log_peaks(world, 20, 24, seed=12_000_000 + 1000 * block)]
    over = {limit: sum(peak >= math.log(limit) for peak in peaks) for limit in (20, 100, 1000)}
    print(f"\nfair A/A runs of 24 pairs: {over} of {len(peaks)} over each limit, median log {statistics.median(peaks):.3f}")
    assert len(peaks) == 500
    assert over[1000] == 0
    assert over[100] <= 5
    assert over[20] <= 25
