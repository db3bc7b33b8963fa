"""Bar of the default policy: faults that hide in whole requests or in shared randomness are killed or held, and not promoted.

`-m prove` runs 200 attempts of each; the suite itself runs a few of each, all of which have to end well.
"""

from __future__ import annotations

import pytest
import torch

from tests.prove.default_policy import FAULTS, Faulty, attempt, most_promoted, outcomes
from tests.stats.world import World

REQUESTS = 620  # past the 461 clean requests of a request certificate, where an exact engine is promoted


@pytest.fixture(scope="module")
def world() -> World:
    torch.set_num_threads(1)
    return World.make()


def test_the_bound_is_alpha_and_three_standard_errors() -> None:
    assert most_promoted(200) == 6
    assert most_promoted(2) == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_not_promoted(world: World, fault: str) -> None:
    found = outcomes(FAULTS[fault], world, 2, REQUESTS, seed=40)
    assert found["promoted"] <= most_promoted(2), found


def test_an_exact_engine_is_promoted(world: World) -> None:
    """Else the tests above could not fail."""
    how, requests = attempt(Faulty(world), REQUESTS, seed=41)
    assert (how, requests >= 461) == ("promoted", True)


@pytest.mark.prove
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("fault", FAULTS)
def test_of_200_attempts_hardly_any_is_promoted(world: World, fault: str) -> None:
    found = outcomes(FAULTS[fault], world, 200, REQUESTS, seed=5_000_000)
    print(f"\n{fault}: {dict(found)}")
    assert found["promoted"] <= most_promoted(200)
