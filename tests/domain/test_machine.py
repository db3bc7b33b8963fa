"""The rollout as a state machine, 60 runs by default; `tests/prove` runs 2,000 of up to 60 steps."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.domain.machine import RolloutMachine


def test_whatever_happens_the_invariants_hold() -> None:
    chosen = settings(
        max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(RolloutMachine, settings=chosen)
