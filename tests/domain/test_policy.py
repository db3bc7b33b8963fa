"""What must hold between the parts of a policy."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from canary.domain.errors import PolicyError
from canary.domain.policy import Gates, Policy, Stage
from canary.domain.rollout import State
from tests.domain.situations import PLACES, POLICY, rollout


def with_stages(*stages: Stage) -> Policy:
    return replace(POLICY, stages=stages)


SHADOW, CANARY, FULL = Stage("shadow", 0), Stage("canary", 500, live_waived="no users"), Stage("full", 10_000)


@pytest.mark.parametrize(
    ("policy", "where"),
    [
        (with_stages(SHADOW, FULL), "stages"),
        (with_stages(CANARY, SHADOW, FULL), "stages"),
        (with_stages(SHADOW, CANARY, CANARY, FULL), "stages"),
        (with_stages(SHADOW, replace(CANARY, weight=0), FULL), "stages"),
        (with_stages(SHADOW, replace(CANARY, weight=10_000), FULL), "stages"),
        (with_stages(SHADOW, CANARY, replace(FULL, weight=9000)), "stages"),
        (with_stages(replace(SHADOW, weight=1), CANARY, FULL), "stages"),
        (with_stages(SHADOW, replace(CANARY, live_waived=None), FULL), "stages.canary.live"),
        (replace(POLICY, gates=replace(POLICY.gates, gap_floor=1e-3)), "gates.gap_floor"),
        (replace(POLICY, gates=replace(POLICY.gates, row_margin=0.3)), "gates.row_margin"),
        (replace(POLICY, limits=replace(POLICY.limits, max_requests=20)), "limits.max_requests"),
    ],
)
def test_contradictions_are_refused(policy: Policy, where: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy.check()
    assert caught.value.where == where


def test_a_legal_policy_passes() -> None:
    POLICY.check()
    with_stages(SHADOW, replace(CANARY, live=("speed",), live_waived=None), FULL).check()


def test_later_attempts_have_a_smaller_alpha_that_sums_to_a_bound() -> None:
    gates = Gates()
    assert gates.alpha_of(1) == 0.01
    assert gates.alpha_of(2) == pytest.approx(0.01 * 6 / math.pi**2 / 4)
    assert sum(gates.alpha_of(j) for j in range(1, 2000)) < 0.0140


def test_shadow_runs_where_evidence_is_wanted() -> None:
    wanted = {p for p in PLACES if rollout(p).wants_shadow}
    assert wanted == {p for p in PLACES if PLACES[p][0] in (State.PENDING, State.SHADOW, State.CANARY, State.FULL, State.HELD)}
    assert not any(rollout(p, killed=True).wants_shadow for p in PLACES)
