"""The rollout as a state machine at full size: 2,000 runs of up to 60 steps."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.domain.machine import RolloutMachine


@pytest.mark.prove
def test_two_thousand_runs_of_sixty_steps() -> None:
    chosen = settings(
        max_examples=2000, stateful_step_count=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(RolloutMachine, settings=chosen)
