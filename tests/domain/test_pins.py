"""Pins: which of them a flag carries in which state, and when a unit may be pinned."""

from __future__ import annotations

import pytest

from canary.domain.errors import ConflictError, KilledError
from canary.domain.pins import MOST_PINS, Pin, in_force, refuse_pin
from canary.domain.rollout import Rollout, State

EPOCH = "e1"


def rollout(state: State, *, killed: bool = False, epoch: str = EPOCH) -> Rollout:
    return Rollout("math", "hash", state, 1, epoch, 1, 0.0, killed=killed)


def pin(variant: str, expires_at: float | None = None) -> Pin:
    return Pin("math", variant, variant, EPOCH, "why", "ada", 5.0, expires_at)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("killed", [False, True])
def test_a_pin_to_the_candidate_counts_only_while_that_candidate_has_traffic(state: State, killed: bool) -> None:
    at = rollout(state, killed=killed)
    carried = in_force([pin("baseline"), pin("candidate")], at, 10.0)
    under_way = not killed and state in (State.CANARY, State.FULL, State.HELD)
    assert carried == {"baseline": "baseline"} | ({"candidate": "candidate"} if under_way else {})


def test_another_subject_is_another_candidate() -> None:
    pins = [pin("baseline"), pin("candidate")]
    assert in_force(pins, rollout(State.FULL, epoch="e2"), 10.0) == {"baseline": "baseline"}


def test_a_pin_ends_at_its_time() -> None:
    pins = [pin("baseline", 10.0), pin("candidate", 11.0)]
    assert in_force(pins, rollout(State.CANARY), 9.9) == {"baseline": "baseline", "candidate": "candidate"}
    assert in_force(pins, rollout(State.CANARY), 10.0) == {"candidate": "candidate"}
    assert in_force(pins, rollout(State.CANARY), 11.0) == {}


@pytest.mark.parametrize("state", list(State))
def test_the_candidate_is_pinned_in_a_canary_stage_or_at_full_and_the_baseline_always(state: State) -> None:
    refuse_pin(rollout(state), "baseline", 0, killed=False)
    refuse_pin(rollout(state, killed=True), "baseline", 0, killed=True)
    if state in (State.CANARY, State.FULL):
        refuse_pin(rollout(state), "candidate", 0, killed=False)
    else:
        with pytest.raises(ConflictError, match=f"state {state.value} pins nobody to the candidate"):
            refuse_pin(rollout(state), "candidate", 0, killed=False)


@pytest.mark.parametrize(("of_rollout", "of_flag"), [(True, False), (False, True), (True, True)])
def test_a_killed_route_pins_nobody_to_the_candidate(of_rollout: bool, of_flag: bool) -> None:
    with pytest.raises(KilledError):
        refuse_pin(rollout(State.FULL, killed=of_rollout), "candidate", 0, killed=of_flag)


def test_a_route_has_so_many_pins_and_no_more() -> None:
    refuse_pin(rollout(State.FULL), "candidate", MOST_PINS - 1, killed=False)
    for variant in ("candidate", "baseline"):
        with pytest.raises(ConflictError, match=f"{MOST_PINS} pins"):
            refuse_pin(rollout(State.FULL), variant, MOST_PINS, killed=False)
