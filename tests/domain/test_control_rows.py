"""What a broken harness does to a decision: the A/A arm speaks before losslessness, never before live errors, and is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.decide import Kind
from canary.domain.errors import PolicyError
from canary.domain.policy import Shadow
from tests.domain.situations import POLICY, Situation

FAILS = {"verdict": "fail", "reason": "harness_at_fault", "value": 4e5, "threshold": 1000.0}


@pytest.mark.parametrize("place", ["shadow", "canary-5", "canary-60", "full"])
@pytest.mark.parametrize("other", ["losslessness", "sample_ratio", "speed", "errors"])
def test_it_holds_whatever_else_the_harness_found(place: str, other: str) -> None:
    found = Situation({"control": FAILS, other: "fail"}).decide(place)
    assert (found.kind, found.row, found.reason, found.gate, found.cause) == (
        Kind.HOLD,
        3,
        "harness_broken",
        "control",
        "harness_at_fault",
    )
    assert found.page is (place == "full")
    assert "control (harness_at_fault) is 4e+05 against 1000" in found.sentence


@pytest.mark.parametrize("place", ["canary-5", "full"])
def test_live_errors_kill_all_the_same(place: str) -> None:
    found = Situation({"control": FAILS, "live errors": "fail"}).decide(place)
    assert (found.kind, found.gate) == (Kind.KILL, "errors")


def test_a_ratio_mismatch_alone_breaks_no_harness() -> None:
    assert Situation({"sample_ratio": "fail", "losslessness": "fail"}).decide("shadow").kind is Kind.KILL


def test_no_pair_yet_is_no_data_and_going_without_is_said() -> None:
    waiting = Situation({"control": {"verdict": "no_data", "needed": 1}}).decide("shadow")
    assert (waiting.kind, waiting.reason) == (Kind.STAY, "no_data")
    assert [m.gate for m in waiting.missing] == ["control"]
    without = Situation({"control": None}, policy={"shadow": Shadow(control_rate=0.0)}).decide("shadow")
    assert without.kind is Kind.ADVANCE
    assert without.notes == ("no A/A pairs: nothing tests the harness itself",)
    assert Situation().decide("shadow").notes == ()


def test_its_batch_size_is_another_one() -> None:
    assert [Shadow(batch_size=n).control_rows for n in (1, 2, 3, 8)] == [1, 1, 1, 4]
    assert Shadow(batch_size=8, control_batch_size=3).control_rows == 3
    replace(POLICY, shadow=Shadow(batch_size=1, control_batch_size=1)).check()
    replace(POLICY, shadow=Shadow(batch_size=8, control_batch_size=7)).check()
    with pytest.raises(PolicyError, match="control_batch_size 8 is not below batch_size 8"):
        replace(POLICY, shadow=Shadow(batch_size=8, control_batch_size=8)).check()
