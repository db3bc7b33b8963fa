"""The simulated proof at full size (`-m prove -s` prints its figures); the suite itself runs a tenth of it."""

from __future__ import annotations

import pytest
import torch

from canary.domain.pairs import DrafterKind
from tests.stats import bars
from tests.stats.experiments import at_margin, kills
from tests.stats.world import World

pytestmark = [pytest.mark.prove, pytest.mark.timeout(7200)]


@pytest.fixture(scope="module")
def world() -> World:
    torch.set_num_threads(1)
    return World.make()


def test_a_clean_engine_is_hardly_ever_killed(world: World) -> None:
    outcomes = [o for kind in DrafterKind for o in kills(world, kind, None, 250, bars.CLEAN_TOKENS, seed=1_000_000)]
    print(f"\nclean: {bars.figures(outcomes)}")
    assert len(outcomes) == 500
    assert bars.num_killed(outcomes) <= 5


def test_contamination_at_the_margin_is_hardly_ever_certified(world: World) -> None:
    false = {}
    for kind, alternative in bars.DIRECTIONS:
        outcomes = at_margin(world, kind, alternative, 200, bars.MARGIN_TOKENS, 2_000_000, bars.MARGIN_GATES)
        false[kind, alternative] = bars.num_false(outcomes, alternative)
        print(f"\nmargin, {kind} {alternative}: {false[kind, alternative]} of 200 certified, {bars.num_killed(outcomes)} killed")
    assert sum(false.values()) <= 17


@pytest.mark.parametrize(("kind", "fault"), bars.FAULTS)
def test_faults_are_killed_within_4000_tokens(world: World, kind: DrafterKind, fault: str) -> None:
    outcomes = kills(world, kind, fault, 100, bars.FAULT_TOKENS, seed=3_000_000)
    print(f"\n{fault}, {kind}: {bars.figures(outcomes)}")
    assert bars.num_killed(outcomes) >= 95
    if fault == "resample_from_target":
        assert sum(o.reason == "wrong_residual" for o in outcomes) >= 95
