"""How much a gate counts: what a policy only observes or warns by never blocks, and a tail is asked for before full alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.decide import Decision, decide
from canary.domain.evidence import Evidence, GateEvidence, GateRole, Source, Verdict
from canary.domain.facts import DRIFT_GATE
from canary.domain.modes import MODES, GateMode, Mode
from canary.domain.policy import Gates
from tests.domain.situations import NOW, POLICY, evidence, rollout


def found(gate: str, verdict: Verdict, *, role: GateRole = GateRole.ECONOMY, source: Source = Source.SHADOW) -> Evidence:
    healthy = evidence()
    extra = GateEvidence(gate, role, verdict, "given", "as given", source=source, n=100, needed=40)
    return replace(healthy, gates=(*(g for g in healthy.gates if g.gate != gate), extra))


def decided(place: str, seen: Evidence, *modes: GateMode) -> Decision:
    policy = replace(POLICY, gates=Gates(modes=modes))
    return decide(rollout(place, baked_seconds=100.0), policy, seen, NOW)


@pytest.mark.parametrize("gate", ["ttft", "memory"])
def test_a_required_gate_blocks_and_fails(gate: str) -> None:
    assert decided("shadow", found(gate, Verdict.INCONCLUSIVE)).reason == "not_yet"
    assert decided("canary-5", found(gate, Verdict.FAIL)).reason == "not_worth_it"
    assert decided("shadow", found(gate, Verdict.PASS)).reason == "all_pass"


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.WARN])
@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("gate", list(MODES))
def test_what_is_only_observed_or_warned_by_never_blocks_and_is_said(gate: str, verdict: Verdict, mode: Mode) -> None:
    role = GateRole.HARNESS if gate == "sample_ratio" else GateRole.ECONOMY
    for place in ("shadow", "canary-5", "canary-60"):
        decision = decided(place, found(gate, verdict, role=role), GateMode(gate, mode, "a test"))
        assert (decision.kind.value, decision.reason, decision.missing) == ("advance", "all_pass", ())
        assert f"{gate} counts as {mode.value}: a test" in decision.notes
        warned = any(note.startswith(f"warning: {gate}") for note in decision.notes)
        assert warned == (mode is Mode.WARN and verdict is Verdict.FAIL)


@pytest.mark.parametrize("verdict", [Verdict.INCONCLUSIVE, Verdict.NO_DATA])
def test_an_open_tail_blocks_the_advance_to_full_alone(verdict: Verdict) -> None:
    seen = found("ttft_tail", verdict)
    assert decided("shadow", seen).reason == "all_pass"
    assert decided("canary-5", seen).reason == "all_pass"
    last = decided("canary-60", seen)
    assert last.kind.value == "stay"
    assert [(m.gate, m.needed) for m in last.missing] == [("ttft_tail", 40)]
    assert decided("canary-60", found("ttft_tail", Verdict.PASS)).kind.value == "advance"


def test_a_failing_tail_counts_at_every_stage() -> None:
    for place in ("shadow", "canary-5", "canary-60", "full"):
        assert decided(place, found("ttft_tail", Verdict.FAIL)).reason == "not_worth_it"


def test_a_policy_may_ask_for_the_tail_everywhere() -> None:
    mode = GateMode("ttft_tail", Mode.REQUIRED, "first tokens are what our users see")
    decision = decided("shadow", found("ttft_tail", Verdict.INCONCLUSIVE), mode)
    assert decision.reason == "not_yet"
    assert not any("ttft_tail" in note for note in decision.notes)


def test_a_live_gate_is_always_asked() -> None:
    seen = found("ttft", Verdict.FAIL, source=Source.LIVE)
    assert decided("canary-5", seen, GateMode("ttft", Mode.OBSERVE, "a test")).reason == "not_worth_it_live"


def test_only_gates_with_a_mode_have_one() -> None:
    assert {name: Gates().mode_of(name) for name in MODES} == dict(MODES)
    for name in ("losslessness", "errors", "speed", "acceptance", "bank_certificate", "baseline"):
        assert Gates().mode_of(name) is Mode.REQUIRED


def test_a_fall_in_the_shadows_acceptance_warns_and_counts_at_full_where_the_policy_asks() -> None:
    seen, mode = found(DRIFT_GATE, Verdict.FAIL), GateMode(DRIFT_GATE, Mode.REQUIRED, "a fall means a new drafter")
    warned = decided("full", seen)
    assert (warned.kind.value, warned.reason) == ("stay", "all_pass")
    assert any(note.startswith(f"warning: {DRIFT_GATE}") for note in warned.notes)
    for place in ("shadow", "canary-5", "canary-60"):
        assert decided(place, seen, mode).kind.value == "advance"
    asked = decided("full", seen, mode)
    assert (asked.kind.value, asked.reason, asked.gate) == ("stay", "not_worth_it", DRIFT_GATE)
    live = decided("full", found(DRIFT_GATE, Verdict.FAIL, source=Source.LIVE))
    assert (live.kind.value, live.reason, live.gate) == ("roll_back", "not_worth_it_live", DRIFT_GATE)
