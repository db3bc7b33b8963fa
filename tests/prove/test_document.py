"""The API's document against the API, with many requests per operation."""

from __future__ import annotations

import pytest

from tests.api.fuzz import disagreements


@pytest.mark.prove
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("seed", [1, 2])
def test_many_requests_at_random_are_answered_as_documented(seed: int) -> None:
    """No server error, no undocumented status or shape, and no illegal request accepted."""
    assert disagreements(examples=60, seed=seed) == []
