"""The exit-code table: what `canary gate` and the verdict object both say about one decision."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from canary.domain.decide import decide
from canary.domain.errors import ExitCode
from canary.domain.evidence import Evidence
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.flow.tools.verdicts import exit_code
from tests.domain.situations import NOW, POLICY, evidence, rollout

DRILL = replace(POLICY, subject=replace(POLICY.subject, fault="uniform_zero"))


def code(found: Evidence | None, at: Rollout | None = None, policy: Policy = POLICY, **more: bool) -> ExitCode:
    """The code of what `decide` makes of the evidence: the same for the gate's values and for what the store gives back."""
    decision = asdict(decide(at or rollout("shadow"), policy, found, NOW))
    gates, pairs = [asdict(g) for g in found.gates] if found else [], found.num_pairs if found else 0
    stored, stored_gates = json.loads(json.dumps([decision, gates]))
    assert exit_code(stored, stored_gates, pairs, **more) is exit_code(decision, gates, pairs, **more)
    return exit_code(decision, gates, pairs, **more)


@pytest.mark.parametrize(
    ("gates", "changes", "expected"),
    [
        ({}, {}, ExitCode.PASS),
        ({"losslessness": "fail"}, {}, ExitCode.KILLED),
        ({"speed": "fail"}, {}, ExitCode.FAIL),
        ({"row_gate": "fail"}, {}, ExitCode.FAIL),
        ({"speed": "fail", "row_gate": "no_data"}, {}, ExitCode.FAIL),
        ({"speed": "fail"}, {"newest_pair_at": NOW - 501}, ExitCode.FAIL),
        ({"speed": "inconclusive"}, {}, ExitCode.INCONCLUSIVE),
        ({"row_gate": "no_data"}, {}, ExitCode.INCONCLUSIVE),
        ({"row_gate": "error"}, {}, ExitCode.INCONCLUSIVE),
        ({"speed": None}, {}, ExitCode.INCONCLUSIVE),
        ({"control": "fail"}, {}, ExitCode.INCONCLUSIVE),
        ({"baseline": "fail"}, {}, ExitCode.INCONCLUSIVE),
        ({"losslessness": "fail"}, {"engine": "another engine"}, ExitCode.INCONCLUSIVE),
        ({}, {"newest_pair_at": NOW - 501}, ExitCode.NO_DATA),
        ({}, {"num_pairs": 0, "newest_pair_at": None}, ExitCode.NO_DATA),
        ({}, {"attempt": 2}, ExitCode.NO_DATA),
    ],
)
def test_the_table(gates: dict[str, Any], changes: dict[str, Any], expected: ExitCode) -> None:
    assert code(evidence(gates, **changes)) is expected


def test_no_evidence_is_no_data() -> None:
    assert code(None) is ExitCode.NO_DATA


@pytest.mark.parametrize("place", ["shadow", "canary-5", "full", "held at canary-5"])
def test_all_gates_pass_wherever_the_rollout_stands(place: str) -> None:
    assert code(evidence(), rollout(place)) is ExitCode.PASS


@pytest.mark.parametrize("place", ["pending", "rolled_back", "archived"])
def test_a_rollout_at_rest_never_passes(place: str) -> None:
    assert code(evidence(), rollout(place)) is ExitCode.INCONCLUSIVE


def test_a_kill_is_said_before_all_else() -> None:
    assert code(evidence(), killed=True) is ExitCode.KILLED
    assert code(evidence({"speed": "fail"}), killed=True, stale=True) is ExitCode.KILLED
    assert code(None, rollout("shadow", killed=True)) is ExitCode.KILLED


def test_what_has_gone_stale_since_the_decision_does_not_pass() -> None:
    assert code(evidence(), stale=True) is ExitCode.NO_DATA
    assert code(evidence({"speed": "inconclusive"}), stale=True) is ExitCode.NO_DATA
    assert code(evidence({"speed": "fail"}), stale=True) is ExitCode.FAIL


def test_a_gate_without_data_for_too_long_is_no_data() -> None:
    late = rollout("canary-5", entered_at=NOW - 2001)
    assert code(evidence({"row_gate": "no_data"}), late) is ExitCode.NO_DATA


def test_a_drill_that_was_not_caught_fails() -> None:
    assert code(evidence({"speed": "no_data"}), policy=DRILL) is ExitCode.FAIL
    assert code(evidence({"speed": "fail", "row_gate": "inconclusive"}), policy=DRILL) is ExitCode.INCONCLUSIVE
    assert code(evidence({"losslessness": "fail"}), policy=DRILL) is ExitCode.KILLED
