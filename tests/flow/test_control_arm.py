"""The A/A arm in the walk: an ordinary pair with k = 0 in the candidate's seat, and what a broken harness does to its route."""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from canary import wiring
from canary.domain.decide import Kind
from canary.domain.errors import PolicyError
from canary.domain.evidence import Evidence, Verdict
from canary.domain.pairs import TRACE_COLUMNS, Arm, Columns, DecodeStats, Generation, Pair, Provenance, Timing
from canary.domain.policy import Shadow
from canary.domain.rollout import Rollout, State
from canary.domain.traffic import pair_id
from canary.flow import arms
from canary.flow.attempt import calibrated, context, controlled, engine_of
from canary.flow.ports import ArmRequest, ShadowEngine, Store
from canary.flow.tools import reports
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.walk import shadow
from canary.flow.walk.assess import assess
from canary.flow.walk.control import tick
from canary.flow.walk.mirror import accept
from canary.inmemory import InMemoryStore
from canary.stats import calibration as calibrations
from canary.telemetry import SilentObserver
from tests.flow import tiny_walk
from tests.flow.policy_texts import LEGAL
from tests.flow.tiny_walk import ROUTE

QUIET = SilentObserver()
RATE = 0.4
COUNT = 20
Change = Callable[[Generation, bool], Generation]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_walk.model_dir(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def engine(target: Path) -> ShadowEngine:
    return wiring.open_engine(tiny_walk.policy(target), threads=1)


class Harness:
    """The engine behind a harness that changes what the candidate's seat reports.

    Args:
        change: of a generation; the flag says whether it is an A/A pair's.
    """

    def __init__(self, engine: ShadowEngine, change: Change = lambda g, _: g) -> None:
        # An epoch of its own: the engine's covers the model's path, and pair ids, draws and controls all follow from it.
        self.info = replace(engine.info, fingerprint="a" * 32)
        self.engine, self.calibrating = engine, True
        self.change = change
        self.passes: list[tuple[Arm, bool, int]] = []
        self.timed: list[bool] = []

    def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> Sequence[Generation]:
        self.engine.calibrating = self.calibrating
        self.passes.append((arm, requests[0].control, len(requests)))
        found = self.engine.generate(requests, arm)
        return [self.change(g, requests[0].control) for g in found] if arm is Arm.CANDIDATE else found

    def time_block(self, requests: Sequence[ArmRequest], arm: Arm) -> Timing:
        self.timed += [request.control for request in requests]
        return Timing(0.1, 1.1, 12)  # a clock without an opinion, so that no test hangs on the machine's


def walk(
    target: Path, engine: ShadowEngine, *, count: int = COUNT, rate: float = RATE, temperature: float = 1.0
) -> tuple[Store, Rollout]:
    """A store in which all prompts have been run and folded."""
    store = InMemoryStore()
    apply_policy(store, tiny_walk.policy(target, control_rate=rate), tiny_walk.policy_text(target, control_rate=rate), 0.0)
    rollout = shadow.announce(store, ROUTE, engine.info, 0.0)
    accept(store, tiny_walk.prompts(count, temperature), 0.0)
    clock = itertools.count(1_000.0).__next__
    while shadow.shadow_once(store, ROUTE, engine, worker="w", clock=clock, observer=QUIET):
        assess(store, ROUTE, clock())
    return store, rollout


def stored(store: Store, rollout: Rollout) -> list[Pair]:
    with store.transaction() as tx:
        found = [tx.pairs.get(i) for i in tx.pairs.ids(ROUTE, rollout.epoch, rollout.attempt)]
    return [pair for pair in found if pair is not None]


def evidence(store: Store) -> Evidence:
    found = assess(store, ROUTE, 9_999.0)
    assert found is not None
    return found


def test_the_rule_is_fixed_before_anything_is_drawn() -> None:
    rule = arms.control_rule(Shadow(control_rate=0.05))
    ids = [pair_id("gateway", f"r{i}", "math", "epoch", 1) for i in range(20_000)]
    chosen = [i for i, pair in enumerate(ids) if rule(i, pair)]
    assert chosen == [i for i, pair in enumerate(ids) if rule(i, pair)]
    early = [i for i in chosen if i < 20]
    assert early[:2] == [1, 3]
    assert all(i % 2 for i in early)
    assert 0.045 < len(chosen) / 20_000 < 0.055
    assert not any(arms.control_rule(Shadow(control_rate=0.0))(i, pair) for i, pair in enumerate(ids[:1000]))
    alone = arms.control_rule(Shadow(control_rate=0.5, calibration_requests=1))
    assert not any(alone(0, pair) for pair in ids[:1000])


def test_both_seats_run_without_drafts_and_are_stored_like_any_pair(target: Path, engine: ShadowEngine) -> None:
    harness = Harness(engine)
    store, rollout = walk(target, harness)
    pairs = stored(store, rollout)
    controls = [p for p in pairs if p.control]
    assert [p.ordinal for p in pairs] == list(range(COUNT))
    assert 5 <= len(controls) <= 12
    assert {1, 3} <= {p.ordinal for p in controls}
    assert not {0, 2} & {p.ordinal for p in controls}
    for pair in controls:
        trace, stats = pair.candidate.trace, pair.candidate.stats
        assert pair.error is None
        assert trace is not None
        assert set(trace.data) == set(TRACE_COLUMNS)
        assert set(trace.data["provenance"]) == {Provenance.PLAIN}
        assert (stats.num_speculative_tokens, stats.num_draft_tokens) == (0, 0)
        assert pair.baseline.stats.num_speculative_tokens == 0
        assert pair.baseline.trace is None
        assert pair.candidate.rows is not None
        assert pair.candidate_timing is not None
    assert any(p.candidate.token_ids != p.baseline.token_ids for p in controls), "each seat draws with its own key"
    assert all(p.candidate.stats.num_speculative_tokens == 3 for p in pairs if not p.control)
    with_controls = [n for arm, control, n in harness.passes if arm is Arm.CANDIDATE and control]
    assert sum(with_controls) == len(controls)
    assert sum(n for arm, _, n in harness.passes if arm is Arm.BASELINE) == COUNT
    assert all(n == 4 for arm, _, n in harness.passes if arm is Arm.BASELINE), "the baseline runs at the ordinary batch size"
    assert harness.timed.count(True) == len(controls), "only the candidate's seat differs"


def test_the_baseline_draws_what_it_draws_without_a_control_arm(target: Path, engine: ShadowEngine) -> None:
    ran = {rate: stored(*walk(target, Harness(engine), count=8, rate=rate)) for rate in (0.0, RATE)}
    assert [p.pair_id for p in ran[0.0]] == [p.pair_id for p in ran[RATE]]
    assert [p.baseline.token_ids for p in ran[0.0]] == [p.baseline.token_ids for p in ran[RATE]]
    alike = [(p.candidate.token_ids, q.candidate.token_ids) for p, q in zip(ran[0.0], ran[RATE], strict=True) if not q.control]
    assert all(one == other for one, other in alike)
    assert not any(p.control for p in ran[0.0])
    assert any(p.control for p in ran[RATE])


def test_they_calibrate_nothing_and_count_in_no_gate_but_their_own(target: Path, engine: ShadowEngine) -> None:
    store, rollout = walk(target, Harness(engine))
    pairs, found = stored(store, rollout), evidence(store)
    controls = sum(p.control for p in pairs)
    assert (found.folded, found.num_pairs, found.num_failed, found.num_control) == (COUNT, COUNT - controls, 0, controls)
    gates = {g.gate: g for g in found.gates}
    assert (gates["losslessness"].n, gates["completeness"].n) == (COUNT - controls, COUNT - controls)
    assert (gates["control"].verdict, gates["control"].reason, gates["control"].n) == (Verdict.PASS, "quiet", controls)
    assert "rows are" in gates["control"].sentence
    with store.transaction() as tx:
        frozen = tx.evidence.get_calibration(ROUTE, rollout.epoch, rollout.attempt)
    assert frozen is not None
    record = calibrations.from_json(frozen)
    assert (record.num_ordinals, record.num_requests) == (2, 2)  # ordinals 0 and 2 of 4
    assert {p.calibration_hash for p in pairs} == {"", record.hash}


def test_evidence_of_both_states_is_bit_equal_to_one_uninterrupted_fold(target: Path, engine: ShadowEngine) -> None:
    store, rollout = walk(target, Harness(engine))
    key = (ROUTE, rollout.epoch, rollout.attempt)
    with store.transaction() as tx:
        record, frozen = tx.evidence.get(*key), tx.evidence.get_calibration(*key)
        items = tx.pairs.contiguous(*key, after=0, limit=1000)
    assert record is not None
    assert frozen is not None
    policy = tiny_walk.policy(target, control_rate=RATE)
    ctx = context(policy, rollout.attempt, engine_of(record["engine"]), None)  # type: ignore[arg-type]
    built = controlled(policy, calibrated(ctx, calibrations.from_json(frozen)))
    whole = json.loads(json.dumps(built.fold(built.start(), items).to_json()))
    for name in ("battery", "control"):
        assert whole[name] == record[name]


def wrong_rows(generation: Generation, control: bool) -> Generation:
    """A trace that reduces wrong rows, whoever runs in the candidate's seat."""
    trace = generation.trace
    if trace is None:
        return generation
    # A wrong row favours the alternatives; here by a ratio of 3 at every token.
    ratios = struct.pack("<f", math.log(3)) * (len(trace.data["log_ratio"]) // 4)
    return replace(generation, trace=Columns(trace.num_tokens, dict(trace.data) | {"log_ratio": ratios}))


def far_at_another_batch_size(generation: Generation, control: bool) -> Generation:
    """Rows of the control batch size alone come out far from the reference's."""
    if not control or generation.rows is None:
        return generation
    data = dict(generation.rows.data) | {"row_tv": struct.pack("<f", 0.9) * generation.rows.num_tokens}
    return replace(generation, rows=Columns(generation.rows.num_tokens, data))


def decided(store: Store) -> tuple[Rollout, Kind, int, str, str]:
    rollout, decision, _ = tick(store, ROUTE, 9_999.0, QUIET)
    return rollout, decision.kind, decision.row, decision.reason, decision.gate


def test_a_broken_trace_holds_the_route_although_losslessness_fails(target: Path, engine: ShadowEngine) -> None:
    store, _ = walk(target, Harness(engine, wrong_rows))
    found = {g.gate: g for g in evidence(store).gates}
    assert found["losslessness"].verdict is Verdict.FAIL
    assert (found["control"].verdict, found["control"].details["loudest"]) == (Verdict.FAIL, "bank")
    rollout, *rest = decided(store)
    assert rest == [Kind.HOLD, 3, "harness_broken", "control"]
    assert (rollout.state, rollout.killed) == (State.HELD, False)
    with store.transaction() as tx:
        last = reports.last_decision(tx, rollout)
    assert last is not None
    assert "The harness, not the candidate, is at fault" in last["decision"]["sentence"]
    assert last["num_control"] == found["control"].n


def test_without_a_control_arm_the_same_fault_kills(target: Path, engine: ShadowEngine) -> None:
    store, _ = walk(target, Harness(engine, wrong_rows), rate=0.0)
    rollout, kind, row, _, gate = decided(store)
    assert (kind, row, gate, rollout.killed) == (Kind.KILL, 4, "losslessness", True)
    assert "control" not in {g.gate for g in evidence(store).gates}


def test_rows_that_depend_on_the_batch_size_hold_the_route(target: Path, engine: ShadowEngine) -> None:
    store, _ = walk(target, Harness(engine, far_at_another_batch_size), count=44, rate=0.5)
    found = {g.gate: g for g in evidence(store).gates}
    assert found["losslessness"].verdict is Verdict.PASS
    assert found["outliers"].verdict is not Verdict.FAIL
    assert (found["control"].verdict, found["control"].details["loudest"]) == (Verdict.FAIL, "row_outliers")
    assert decided(store)[1:] == (Kind.HOLD, 3, "harness_broken", "control")


def test_a_request_that_breaks_the_control_seat_fails_there_alone(target: Path, engine: ShadowEngine) -> None:
    def broken(generation: Generation, control: bool) -> Generation:
        if not control:
            return generation
        raise RuntimeError("no room")

    store, rollout = walk(target, Harness(engine, broken), count=8)
    pairs = stored(store, rollout)
    assert {p.candidate.error for p in pairs if p.control} == {"RuntimeError: no room"}
    assert {p.candidate.stats for p in pairs if p.control} == {DecodeStats(0, (), ())}
    assert all(p.candidate.error is None for p in pairs if not p.control)
    assert {g.gate: g.n for g in evidence(store).gates}["control"] == sum(p.control for p in pairs)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("  control_rate: 0.6", "shadow.control_rate is 0.6"),
        ("  control_rate: 5 %", "shadow.control_rate is '5 %'"),
        ("  control_batch_size: 0", "shadow.control_batch_size is 0"),
        ("  control_batch_size: 8", "shadow.control_batch_size: control_batch_size 8 is not below batch_size 8"),
        ("  control_size: 4", "shadow has an unknown key 'control_size'"),
    ],
)
def test_a_wrong_control_field_is_named_with_its_line(line: str, complaint: str) -> None:
    text = LEGAL.replace("  batch_size: 8", f"  batch_size: 8\n{line}")
    with pytest.raises(PolicyError) as caught:
        load_text(text, "p.yaml")
    assert str(caught.value).startswith("p.yaml:9:")
    assert complaint in str(caught.value)


def test_control_fields_are_read_and_written_back() -> None:
    text = LEGAL.replace("  batch_size: 8", "  batch_size: 8\n  control_rate: 0.1\n  control_batch_size: 2")
    policy = load_text(text.replace("  margin: 0.02", "  margin: 0.02\n  control_limit: 5000"))
    assert (policy.shadow.control_rate, policy.shadow.control_rows, policy.gates.control_limit) == (0.1, 2, 5000)
    assert load_text(dump(policy)) == policy
    assert load_text(LEGAL).content_hash == load_text(LEGAL.replace("  batch_size: 8", "  control_rate: 0.05")).content_hash
