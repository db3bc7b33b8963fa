"""What must hold of every decision and every step, whatever the evidence says."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from canary.domain.decide import Kind, decide
from canary.domain.evidence import Evidence, GateEvidence, GateRole, Source, Verdict
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout, State
from canary.domain.step import new_epoch, step, weight_of
from tests.domain.situations import NOW, PLACES, POLICY, ROLES, evidence, rollout

EXAMPLES = settings(max_examples=200, deadline=None, derandomize=True)
FAULT = replace(POLICY, subject=replace(POLICY.subject, fault="uniform_zero"))
seconds = st.floats(0, 20_000)
optional = st.none() | st.floats(allow_nan=True, allow_infinity=True)


@st.composite
def gates(draw: st.DrawFn) -> GateEvidence:
    return GateEvidence(
        gate=draw(st.sampled_from([*ROLES, "never_heard_of"])),
        role=draw(st.sampled_from(GateRole)),
        verdict=draw(st.sampled_from([*Verdict, Verdict.PASS, Verdict.PASS])),
        reason=draw(st.sampled_from(["", "certified", "noise_floor"])),
        sentence=draw(st.sampled_from(["", "a sentence."])),
        value=draw(optional),
        low=draw(optional),
        high=draw(optional),
        threshold=draw(optional),
        n=draw(st.integers(0, 10_000)),
        needed=draw(st.none() | st.integers(0, 100)),
        source=draw(st.sampled_from(Source)),
        details=draw(st.sampled_from([{}, {"component_fired": False}, {"component_fired": True}])),
    )


@st.composite
def evidences(draw: st.DrawFn) -> Evidence | None:
    """Any evidence: mostly the healthy one with a few gates put in or taken away, so that an advance is not rare."""
    if draw(st.integers(0, 9)) == 0:
        return None
    found = evidence(
        dict.fromkeys(draw(st.lists(st.sampled_from(list(ROLES)), max_size=1))),
        epoch=draw(st.sampled_from(["epoch", "epoch", "epoch", "other"])),
        engine=draw(st.sampled_from(["epoch", "epoch", "epoch", "other"])),
        num_pairs=draw(st.sampled_from([0, 200, 200, 5000])),
        newest_pair_at=draw(st.sampled_from([None, NOW, NOW, NOW - 400, NOW - 600])),
    )
    extra = draw(st.lists(gates(), max_size=3))
    return replace(found, gates=(*found.gates, *extra))


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    ramp = draw(st.sampled_from([0, 0, 10_000]))
    return rollout(
        draw(st.sampled_from(list(PLACES))),
        entered_at=NOW - draw(seconds),
        baked_seconds=draw(st.sampled_from([0.0, 99.0, 100.0])),
        assessed_at=draw(st.none() | st.just(NOW - 10)),
        errors=draw(st.integers(0, 6)),
        killed=draw(st.sampled_from([False, False, False, True])),
        ramp_weight=ramp,
        ramp_start=NOW - 100 if ramp else 0.0,
        ramp_end=NOW + 100 if ramp else 0.0,
    )


policies = st.sampled_from(
    [POLICY, POLICY, FAULT, replace(POLICY, inside_margin="hold"), replace(POLICY, on_no_data="baseline", on_drift="keep")]
)


@EXAMPLES
@given(rollouts(), policies, evidences(), st.none() | st.just("an incident"))
def test_total_deterministic_and_plain(r: Rollout, policy: Policy, found: Evidence | None, manual: str | None) -> None:
    first = decide(r, policy, found, NOW, manual_kill=manual)
    assert first == decide(r, policy, found, NOW, manual_kill=manual)
    assert 1 <= first.row <= 9
    assert first.sentence.endswith(".")
    stepped = step(r, policy, first, NOW)
    assert stepped == step(r, policy, first, NOW)
    json.dumps([asdict(first), stepped.audit])


@EXAMPLES
@given(rollouts(), policies, evidences())
def test_unknown_never_advances(r: Rollout, policy: Policy, found: Evidence | None) -> None:
    """A3.1, A3.3, A5.1: whatever is inconclusive, stale, absent or an error, nothing advances."""
    decision = decide(r, policy, found, NOW)
    if decision.kind is not Kind.ADVANCE:
        return
    assert found is not None
    assert r.state in (State.SHADOW, State.CANARY)
    assert not r.killed
    assert policy.subject.fault is None
    assert (found.epoch, found.attempt, found.engine) == (r.epoch, r.attempt, found.subject)
    assert {g.verdict for g in found.gates} == {Verdict.PASS}
    assert {"losslessness", "acceptance", "speed"} <= {g.gate for g in found.gates}
    assert any(g.role is GateRole.EQUIVALENCE for g in found.gates)
    assert found.newest_pair_at is not None
    assert NOW - found.newest_pair_at <= policy.limits.fresh_seconds
    assert r.baked_seconds >= policy.stages[r.stage].bake_seconds


@EXAMPLES
@given(
    st.sampled_from(["shadow", "canary-5", "canary-60"]),
    st.sampled_from(list(ROLES)),
    st.sampled_from([v for v in Verdict if v is not Verdict.PASS]),
    st.sampled_from(Source),
)
def test_one_gate_less_than_passing_stops_an_advance(place: str, name: str, verdict: Verdict, source: Source) -> None:
    ready = rollout(place, baked_seconds=100.0)
    whole = evidence()
    assert decide(ready, POLICY, whole, NOW).kind is Kind.ADVANCE
    spoilt = tuple(replace(g, verdict=verdict, source=source) if g.gate == name else g for g in whole.gates)
    assert decide(ready, POLICY, replace(whole, gates=spoilt), NOW).kind is not Kind.ADVANCE


@EXAMPLES
@given(rollouts(), policies, evidences(), st.booleans())
def test_a_kill_beats_everything(r: Rollout, policy: Policy, found: Evidence | None, manual: bool) -> None:
    r = replace(r, killed=r.killed or not manual)
    decision = decide(r, policy, found, NOW, manual_kill="an incident" if manual else None)
    stepped = step(r, policy, decision, NOW)
    assert decision.kind is Kind.KILL
    assert stepped.rollout.killed
    assert not stepped.rollout.wants_shadow
    if manual:
        assert stepped.flag_weight == 0
        assert stepped.killed
    assert stepped.killed == (stepped.flag_weight == 0)


@EXAMPLES
@given(rollouts(), policies, evidences())
def test_a_step_moves_one_stage_up_or_traffic_down(r: Rollout, policy: Policy, found: Evidence | None) -> None:
    decision = decide(r, policy, found, NOW)
    stepped = step(r, policy, decision, NOW)
    before = weight_of(r, policy, NOW)
    assert stepped.rollout.version == r.version + 1
    if decision.kind is Kind.ADVANCE:
        assert stepped.rollout.stage == r.stage + 1
        assert before < stepped.flag_weight == policy.stages[r.stage + 1].weight
        assert (stepped.rollout.baked_seconds, stepped.rollout.entered_at) == (0.0, NOW)
    else:
        assert stepped.rollout.stage == r.stage
        assert stepped.flag_weight <= before
    if decision.kind in (Kind.STAY, Kind.HOLD):
        assert stepped.flag_weight == before
    assert stepped.rollout.attempt == r.attempt


@EXAMPLES
@given(policies, st.lists(st.tuples(evidences(), st.sampled_from([1.0, 30.0, 120.0, 3000.0])), max_size=30))
def test_a_run_of_assessments_keeps_its_promises(policy: Policy, looks: list[tuple[Evidence | None, float]]) -> None:
    r, now, weight = rollout("shadow", assessed_at=None), NOW, 0
    for found, wait in looks:
        now += wait
        if found is not None and found.newest_pair_at is not None:
            found = replace(found, newest_pair_at=found.newest_pair_at + now - NOW)
        decision = decide(r, policy, found, now)
        stepped = step(r, policy, decision, now)
        assert r.killed <= stepped.rollout.killed
        assert stepped.flag_weight <= weight or decision.kind is Kind.ADVANCE
        assert stepped.rollout.state is not State.ROLLED_BACK or stepped.flag_weight == 0 or now < stepped.rollout.ramp_end
        r, weight = stepped.rollout, stepped.flag_weight


@EXAMPLES
@given(rollouts(), policies, st.sampled_from(["epoch", "next"]))
def test_a_new_epoch_never_raises_a_weight_or_lifts_a_kill(r: Rollout, policy: Policy, epoch: str) -> None:
    stepped = new_epoch(r, epoch, policy, NOW)
    assert stepped.flag_weight <= weight_of(r, policy, NOW)
    assert stepped.rollout.killed == r.killed
    assert stepped.rollout.version == r.version + (stepped.rollout != r)
