"""A tenth of the simulated proof: clean engines live, faults die, and the margin is not certified (bounds in `bars`)."""

from __future__ import annotations

import pytest
import torch

from canary.domain.pairs import DrafterKind
from tests.stats import bars
from tests.stats.experiments import at_margin, kills
from tests.stats.world import World


@pytest.fixture(scope="module")
def world() -> World:
    torch.set_num_threads(1)
    return World.make()


def test_a_clean_engine_is_hardly_ever_killed(world: World) -> None:
    """A5.20: looked at after every request."""
    outcomes = [o for kind in DrafterKind for o in kills(world, kind, None, 15, bars.CLEAN_TOKENS, seed=11)]
    assert len(outcomes) == 30
    assert bars.num_killed(outcomes) <= 1
    # The same tokens are evidence for equality: at margin .01 some direction is certified in every run.
    assert all(max(v for k, v in o.peaks.items() if k.startswith("certificates.bank:")) >= bars.GOAL for o in outcomes)


def test_contamination_at_the_margin_is_hardly_ever_certified(world: World) -> None:
    false = 0
    for kind, alternative in bars.DIRECTIONS:
        outcomes = at_margin(world, kind, alternative, 5, bars.MARGIN_TOKENS, 12, bars.MARGIN_GATES)
        false += bars.num_false(outcomes, alternative)
    assert false <= 1


@pytest.mark.parametrize(("kind", "fault"), bars.FAULTS)
def test_faults_are_killed_within_4000_tokens(world: World, kind: DrafterKind, fault: str) -> None:
    outcomes = kills(world, kind, fault, 10, bars.FAULT_TOKENS, seed=13)
    assert bars.num_killed(outcomes) >= 9
    if fault == "resample_from_target":
        assert sum(o.reason == "wrong_residual" for o in outcomes) >= 9
