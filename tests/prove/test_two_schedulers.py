"""Two schedulers, fifty times: the leader is stopped past its lease and woken, and each transition leaves exactly one row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.two_schedulers import play

ROUNDS = 50


@pytest.mark.prove
@pytest.mark.timeout(1_800)
def test_fifty_sleeping_leaders_leave_one_row_a_transition(database: str, tmp_path: Path) -> None:
    """A3.14, A5.7."""
    assert play(database, tmp_path, ROUNDS) == [1] * ROUNDS
