"""Memory over two thousand requests, for every drafter, counted and not estimated."""

from __future__ import annotations

import pytest

from tests.engine.test_work_counted import NAMES, memory_of

pytestmark = pytest.mark.prove


@pytest.mark.parametrize("drafter", NAMES)
def test_memory_does_not_grow_over_two_thousand_requests(drafter: str) -> None:
    memory_of(drafter, 2_000)
