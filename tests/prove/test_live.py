"""False alarms of the live gates at full size (`-m prove -s` prints its figures); the suite itself runs a part of it."""

from __future__ import annotations

import math

import pytest

from canary.stats.bounded import log_budget
from canary.stats.live import fold
from tests.stats.live_traffic import CONTEXT, START, traffic
from tests.stats.test_live import FAIR, through_an_outage

pytestmark = [pytest.mark.prove, pytest.mark.timeout(7200)]

RUNS = 500


def most(alpha: float) -> float:
    """alpha + 3 standard errors, as a count."""
    return RUNS * alpha + 3 * math.sqrt(RUNS * alpha * (1 - alpha))


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_an_outage_of_both_arms_kills_nobody(share: float) -> None:
    killed = 0
    for seed in range(RUNS):
        state = fold(CONTEXT, START, through_an_outage(seed, 600, share))
        killed += state.tracks["errors"].peak_above >= log_budget(CONTEXT.safety_alpha)
    print(f"\noutage, {share:g} on the candidate: {killed} of {RUNS} killed")
    assert killed <= most(CONTEXT.safety_alpha)


@pytest.mark.parametrize("name", FAIR)
def test_traffic_at_the_threshold_is_decided_seldom(name: str) -> None:
    """A5.20: looked at after every observation."""
    above = below = 0
    for seed in range(RUNS):
        track = fold(CONTEXT, START, traffic(seed, 600, FAIR[name])).tracks[name]
        above += track.peak_above >= log_budget(CONTEXT.alpha)
        below += track.peak_below >= log_budget(CONTEXT.alpha)
    print(f"\n{name}: {above} above and {below} below of {RUNS}")
    assert max(above, below) <= most(CONTEXT.alpha)
