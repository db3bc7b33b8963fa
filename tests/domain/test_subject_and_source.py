"""Whose proof it is: what ran on another engine, or in shadow alone, never takes production traffic off."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.domain.decide import Kind, decide
from canary.domain.evidence import Evidence, GateEvidence, GateRole, Source, Verdict
from canary.domain.facts import DRIFT_GATE
from canary.domain.live_policy import LIVE_GATES, LIVE_SAFETY
from canary.domain.rollout import Rollout
from canary.domain.step import step, weight_of
from tests.domain.situations import NOW, POLICY, evidence, rollout
from tests.domain.test_decide_properties import EXAMPLES, evidences, rollouts

SERVING = ("canary-5", "canary-60", "full")
ECONOMY = tuple(name for name in LIVE_GATES if name not in LIVE_SAFETY)


def made(name: str, verdict: Verdict, source: Source) -> GateEvidence:
    role = GateRole.SAFETY if name in LIVE_SAFETY else GateRole.ECONOMY
    return GateEvidence(name, role, verdict, verdict.value, "", n=100, source=source)


def beside(*gates: GateEvidence, **changes: object) -> Evidence:
    """Healthy evidence with further gates; one of the same name and source is replaced."""
    found = evidence(**changes)  # type: ignore[arg-type]
    new = {(g.gate, g.source) for g in gates}
    return replace(found, gates=(*(g for g in found.gates if (g.gate, g.source) not in new), *gates))


@EXAMPLES
@given(st.sampled_from(SERVING), st.sampled_from([0.0, 100.0]), evidences())
def test_another_engine_never_takes_traffic_off(place: str, baked: float, any_evidence: Evidence | None) -> None:
    r, found = rollout(place, baked_seconds=baked), any_evidence or evidence()
    foreign = replace(
        found,
        epoch=r.epoch,
        engine="another engine",
        newest_pair_at=NOW,
        num_pairs=200,
        gates=tuple(replace(g, source=Source.SHADOW) for g in found.gates),
    )
    decision = decide(r, POLICY, foreign, NOW)
    assert decision.row == 7 or decision.kind not in (Kind.KILL, Kind.ROLL_BACK)
    if decision.row != 7:
        assert weight_of(step(r, POLICY, decision, NOW).rollout, POLICY, NOW) >= weight_of(r, POLICY, NOW)
    assert decision.kind is not Kind.ADVANCE, "what is not about the subject proves nothing"


@EXAMPLES
@given(rollouts(), evidences())
def test_economy_takes_traffic_off_on_live_evidence_alone(r: Rollout, found: Evidence | None) -> None:
    decision = decide(r, POLICY, found, NOW)
    if decision.row == 5 and decision.kind is Kind.ROLL_BACK:
        assert found is not None
        (gate, *_) = [g for g in found.gates if g.gate == decision.gate and g.verdict is Verdict.FAIL and g.source is Source.LIVE]
        assert gate.role is GateRole.ECONOMY


@pytest.mark.parametrize("place", SERVING)
@pytest.mark.parametrize("name", ECONOMY)
def test_a_live_economy_gate_rolls_back_and_a_shadow_one_does_not(name: str, place: str) -> None:
    live = decide(rollout(place), POLICY, beside(made(name, Verdict.FAIL, Source.LIVE)), NOW)
    assert (live.kind, live.reason, live.row, live.gate) == (Kind.ROLL_BACK, "not_worth_it_live", 5, name)
    if name == DRIFT_GATE:  # of the shadow's pairs it only warns, see tests.domain.test_modes
        return
    shadow = decide(rollout(place), POLICY, beside(made(name, Verdict.FAIL, Source.SHADOW)), NOW)
    assert shadow.kind is (Kind.STAY if place == "full" else Kind.HOLD)
    both = beside(made(name, Verdict.FAIL, Source.SHADOW), made(name, Verdict.FAIL, Source.LIVE))
    assert decide(rollout(place), POLICY, both, NOW).kind is Kind.ROLL_BACK


@pytest.mark.parametrize("place", SERVING)
@pytest.mark.parametrize("name", LIVE_SAFETY)
def test_a_live_safety_gate_kills_at_once_even_by_a_broken_harness(name: str, place: str) -> None:
    harness = GateEvidence("control", GateRole.HARNESS, Verdict.FAIL, "broken", "", n=100)
    for found in (
        beside(made(name, Verdict.FAIL, Source.LIVE)),
        beside(made(name, Verdict.FAIL, Source.LIVE), harness),
        beside(made(name, Verdict.FAIL, Source.LIVE), engine="another engine"),
    ):
        decision = decide(rollout(place), POLICY, found, NOW)
        assert (decision.kind, decision.reason, decision.ramp) == (Kind.KILL, "live_errors", False)


@pytest.mark.parametrize("name", LIVE_GATES)
@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.PASS] + [None])
def test_a_stage_waits_for_every_live_gate_that_it_asks_for(name: str, verdict: Verdict | None) -> None:
    stages = tuple(replace(s, live=(name,), live_waived=None) if s.name == "canary-5" else s for s in POLICY.stages)
    policy, ready = replace(POLICY, stages=stages), rollout("canary-5", baked_seconds=100.0)
    passing = decide(ready, policy, beside(made(name, Verdict.PASS, Source.LIVE)), NOW)
    assert passing.kind is Kind.ADVANCE
    found = beside() if verdict is None else beside(made(name, verdict, Source.LIVE))
    waiting = decide(ready, policy, found, NOW)
    assert waiting.kind is not Kind.ADVANCE
    assert f"live {name}" in [m.gate for m in waiting.missing]
    if verdict is None:
        assert waiting.reason == "no_data"


def test_live_traffic_that_falls_silent_is_waited_for_anew() -> None:
    stages = tuple(replace(s, live=("speed",), live_waived=None) if s.name == "canary-5" else s for s in POLICY.stages)
    policy = replace(POLICY, stages=stages)
    entered = NOW - policy.limits.no_data_seconds - 500
    for heard, kind in (
        (NOW - 600, Kind.STAY),
        (NOW - policy.limits.no_data_seconds - 1, Kind.ROLL_BACK),
        (None, Kind.ROLL_BACK),
    ):
        silent = replace(made("speed", Verdict.NO_DATA, Source.LIVE), details={"newest_at": heard})
        decision = decide(rollout("canary-5", entered_at=entered), policy, beside(silent), NOW)
        assert (decision.kind, decision.row) == (kind, 7)
