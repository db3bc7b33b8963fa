"""Every planted fault is noticed by the test that is named for it, and without the fault that test passes."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.outcomes import Failed

from tests.domain.mutations import MUTATIONS, Mutation, planted


def _run(mutation: Mutation, fault: Mutation | None) -> None:
    with planted(fault) as find:
        test = find(mutation.test)
        args = [_value(test, a) for a in mutation.args]
        test(*args)


def _value(test: Any, arg: Any) -> Any:
    """A parameter that must be of the modules as they are loaded now is given by its name."""
    if arg == "EVIDENCE":
        return test.__globals__["evidence"]()
    if arg == "ROLLED_BACK":
        return test.__globals__["State"].ROLLED_BACK
    return arg


def test_there_are_enough_and_each_is_named() -> None:
    assert len(MUTATIONS) >= 25
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS)
    assert {m.module for m in MUTATIONS} >= {"decide", "step", "bucket"}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name.replace(" ", "-"))
def test_a_planted_fault_is_noticed(mutation: Mutation) -> None:
    _run(mutation, None)
    noticed = True
    try:
        _run(mutation, mutation)
        noticed = False
    except (AssertionError, Failed, Exception):
        pass
    assert noticed, f"{mutation.test} passes although {mutation.name}"
