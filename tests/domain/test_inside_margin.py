"""A difference that is proven inside every margin is said to be one, whatever the policy makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.decide import Kind, decide
from tests.domain.situations import NOW, POLICY, evidence, rollout

NOTE = "inside_margin: the proven difference lies inside every certified margin"


@pytest.mark.parametrize(("policy", "kind"), [("kill", Kind.KILL), ("hold", Kind.HOLD)])
@pytest.mark.parametrize("inside", [True, False])
def test_the_note_goes_with_the_finding_and_not_with_the_policy(policy: str, kind: Kind, inside: bool) -> None:
    details = {"inside_margin": inside, "component_fired": False}
    found = evidence({"losslessness": {"verdict": "fail", "reason": "wrong_residual", "details": details}})
    decision = decide(rollout("canary-5"), replace(POLICY, inside_margin=policy), found, NOW)
    assert decision.kind is kind
    assert decision.cause == "wrong_residual"
    assert (NOTE in decision.notes) is inside


def test_a_passing_route_has_no_such_note() -> None:
    assert NOTE not in decide(rollout("shadow"), POLICY, evidence(), NOW).notes
