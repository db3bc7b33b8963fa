"""Bar: two schedulers, one stopped past its lease and woken; the full size is in `tests/prove`."""

from __future__ import annotations

from pathlib import Path

from tests.jobs.two_schedulers import play


def test_a_leader_that_slept_leaves_one_row_a_transition(database: str, tmp_path: Path) -> None:
    """A3.14, A5.7."""
    assert play(database, tmp_path, rounds=2) == [1, 1]
    assert "leading" in (tmp_path / "a").read_text()
    assert "leading" in (tmp_path / "b").read_text()
