"""Timing above concurrency 1: which requests run together, what a block stores, and when the timing ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from canary import wiring
from canary.domain.errors import PolicyError
from canary.domain.evidence import Verdict
from canary.domain.modes import GateMode, Mode
from canary.domain.pairs import Arm, Generation, Pair, Timing
from canary.domain.policy import Gates, Shadow
from canary.flow import arms, timing
from canary.flow.outlook import Outlook
from canary.flow.ports import ArmRequest, FoldItem, ShadowEngine
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load_text, schema
from canary.flow.walk import shadow
from canary.flow.walk.assess import assess
from canary.flow.walk.mirror import accept
from canary.inmemory import InMemoryStore
from canary.stats.battery import pack
from canary.stats.controlled import ControlledBattery
from canary.stats.ttft_tail import MIN_TIMED
from canary.telemetry import SilentObserver
from tests.flow import tiny_walk
from tests.flow.policy_texts import LEGAL
from tests.flow.test_outlook import OBSERVED, timed_pair
from tests.flow.tiny_walk import ROUTE
from tests.stats import make


def text(target: Path, *, control_rate: float = 0.0) -> str:
    """The tiny route in batches of 8, of which 4 are timed together."""
    plain = tiny_walk.policy_text(target, control_rate=control_rate)
    return plain.replace("batch_size: 4", "batch_size: 8, timing_concurrency: 4").replace(
        "gates:\n", "gates:\n  speed_concurrency: 4\n"
    )


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_walk.model_dir(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def engine(target: Path) -> ShadowEngine:
    return wiring.open_engine(load_text(text(target)), threads=1)


class Counting:
    """The engine with a clock without an opinion; it notes what was timed together.

    Args:
        breaks: request whose candidate's answer is an error.
    """

    def __init__(self, engine: ShadowEngine, *, breaks: str = "") -> None:
        self.engine, self.info, self.calibrating = engine, replace(engine.info, fingerprint="b" * 32), True
        self.breaks = breaks
        self.timed: list[tuple[Arm, tuple[str, ...], bool]] = []

    def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> Sequence[Generation]:
        self.engine.calibrating = self.calibrating
        found = self.engine.generate(requests, arm)
        broken = [arm is Arm.CANDIDATE and r.prompt.request_id == self.breaks for r in requests]
        return [replace(g, error="broken", finish_reason="error") if b else g for g, b in zip(found, broken, strict=True)]

    def time_block(self, requests: Sequence[ArmRequest], arm: Arm) -> Timing:
        self.timed.append((arm, tuple(r.prompt.request_id for r in requests), requests[0].control))
        return Timing(0.1, 1.1, 12 * len(requests), len(requests))


def walked(target: Path, engine: ShadowEngine, count: int, *, control_rate: float = 0.0) -> list[Pair]:
    """The stored pairs of one walk, in ordinal order; four of them calibrate."""
    store = InMemoryStore()
    source = text(target, control_rate=control_rate)
    apply_policy(store, load_text(source), source, 0.0)
    rollout = shadow.announce(store, ROUTE, engine.info, 0.0)
    accept(store, tiny_walk.prompts(count, 1.0), 0.0)
    clock = itertools.count(1_000.0).__next__
    while shadow.shadow_once(store, ROUTE, engine, worker="w", clock=clock, observer=SilentObserver()):
        assess(store, ROUTE, clock())
    with store.transaction() as tx:
        found = [tx.pairs.get(i) for i in tx.pairs.ids(ROUTE, rollout.epoch, rollout.attempt)]
    return [pair for pair in found if pair is not None]


def test_a_batch_of_eight_gives_two_timings_of_four_per_arm(target: Path, engine: ShadowEngine) -> None:
    counting = Counting(engine)
    pairs = walked(target, counting, 12)
    for arm in Arm:
        assert [ids for a, ids, _ in counting.timed if a is arm] == [tuple(f"r{i}" for i in range(s, s + 4)) for s in (0, 4, 8)]
    first_arms = [counting.timed[i][0] for i in range(0, len(counting.timed), 2)]
    assert first_arms == [arms.order(pairs[s].pair_id)[0] for s in (0, 4, 8)]
    for pair in pairs:
        timings = (pair.baseline_timing, pair.candidate_timing)
        assert timings == ((Timing(0.1, 1.1, 48, 4),) * 2 if pair.ordinal % 4 == 0 else (None, None))


def test_a_block_with_a_failed_request_and_a_shorter_one_are_not_timed(target: Path, engine: ShadowEngine) -> None:
    counting = Counting(engine, breaks="r6")
    pairs = walked(target, counting, 15)
    assert {ids for _, ids, _ in counting.timed} == {("r0", "r1", "r2", "r3"), ("r8", "r9", "r10", "r11")}
    assert [p.ordinal for p in pairs if p.baseline_timing] == [0, 8]


def test_blocks_hold_requests_of_one_kind(target: Path, engine: ShadowEngine) -> None:
    counting = Counting(engine)
    pairs = walked(target, counting, 20, control_rate=0.3)
    controls = {f"r{p.ordinal}" for p in pairs if p.control}
    assert all(
        set(ids) <= controls if control else not set(ids) & controls for a, ids, control in counting.timed if a is Arm.CANDIDATE
    )
    assert {len(ids) for a, ids, control in counting.timed if a is Arm.CANDIDATE and not control} == {4}
    timed = {i for _, ids, _ in counting.timed for i in ids}
    assert controls <= timed


@pytest.mark.parametrize(
    ("controls", "shadow_of", "found"),
    [
        ([False] * 3, Shadow(), {0: (0,), 1: (1,), 2: (2,)}),
        ([False] * 8, Shadow(timing_concurrency=4), {0: (0, 1, 2, 3), 4: (4, 5, 6, 7)}),
        ([False] * 7, Shadow(timing_concurrency=4), {0: (0, 1, 2, 3)}),
        ([False, True] * 4, Shadow(timing_concurrency=3), {0: (0, 2, 4), 1: (1, 3, 5), 7: (7,)}),
        (
            [True] * 8,
            Shadow(timing_concurrency=8),
            {0: (0, 1, 2, 3), 4: (4, 5, 6, 7)},
        ),  # half of the batch in the candidate's seat
        ([], Shadow(timing_concurrency=2), {}),
    ],
)
def test_the_blocks_of_a_batch(controls: list[bool], shadow_of: Shadow, found: dict[int, tuple[int, ...]]) -> None:
    assert timing.blocks(controls, shadow_of) == found


def test_what_the_calibrating_ordinals_can_give() -> None:
    assert timing.calibrating(Shadow(control_rate=0.0)) == 20
    assert timing.calibrating(Shadow(control_rate=0.0, timing_concurrency=4)) == 5
    assert timing.calibrating(Shadow(control_rate=0.0, timing_concurrency=3)) == 2 + 2 + 1
    assert MIN_TIMED < timing.calibrating(Shadow()) < 18


def blocks_needed(gates: Gates, size: int) -> int:
    """Blocks that are timed until nothing is wanted; only the first pair of each carries a timing."""
    battery = ControlledBattery(make.context(gates))
    outlook, count = Outlook(battery, battery.start(), [], drill=False), 0
    for ordinal in range(400):
        pair = timed_pair(battery, ordinal, 3.0)
        if ordinal % size == 0:
            if not outlook.wants_timing:
                return count
            count += 1
            whole = replace(make.timing(0.1, num_tokens=41 * size), concurrency=size)
            fast = replace(make.timing(0.1 / 3, num_tokens=41 * size), concurrency=size)
            pair = replace(pair, baseline_timing=whole, candidate_timing=fast)
        else:
            pair = replace(pair, baseline_timing=None, candidate_timing=None)
        increments = battery.main.increments(pair)
        assert increments is not None
        outlook.add(replace(pair, increments=pack(increments)))
    raise AssertionError("the speed gate never closed")


def test_as_many_blocks_are_timed_as_single_requests_would_be() -> None:
    assert blocks_needed(Gates(modes=OBSERVED, speed_concurrency=4), 4) == blocks_needed(Gates(modes=OBSERVED), 1)


@pytest.mark.parametrize(("mode", "slo", "timed"), [("warn", None, True), ("observe", None, False), ("warn", 0.5, False)])
def test_a_gate_that_warns_gets_its_threshold_from_calibrating_requests(mode: str, slo: float | None, timed: bool) -> None:
    """Speed is decided at once here, so that nothing else asks for a timing."""
    modes = (OBSERVED[0], GateMode("ttft_tail", Mode(mode), "a test"))
    gates = Gates(alpha=0.4, modes=modes, ttft_slo_seconds=slo)
    battery = ControlledBattery(make.context(gates, calibrated=False))
    outlook = Outlook(battery, battery.start(), [], drill=False)
    counts = []
    for ordinal in range(MIN_TIMED + 5):
        counts.append(outlook.wants_timing)
        outlook.add(timed_pair(battery, ordinal, 3.0))
    assert sum(counts) == MIN_TIMED if timed else sum(counts) < MIN_TIMED
    frozen = ControlledBattery(make.context(gates))
    later = Outlook(frozen, frozen.start(), [], drill=False)
    for ordinal in range(MIN_TIMED - 1):
        later.add(timed_pair(frozen, ordinal, 3.0))
    assert not later.wants_timing, "once it has calibrated, nobody waits for a gate that only warns"


def test_the_policy_says_how_many_are_timed_together() -> None:
    loaded = LEGAL.replace("batch_size: 8", "batch_size: 8\n  timing_concurrency: 6").replace(
        "gates:\n", "gates:\n  speed_concurrency: 5\n"
    )
    policy = load_text(loaded)
    assert policy.shadow.timing_concurrency == 6
    assert load_text(dump(policy)) == policy
    assert load_text(LEGAL).shadow.timing_concurrency == 1
    assert schema()["properties"]["shadow"]["properties"]["timing_concurrency"]["default"] == 1


@pytest.mark.parametrize(
    ("lines", "field", "said"),
    [
        ("timing_concurrency: 9", "shadow.timing_concurrency", "not between 1 and batch_size 8"),
        ("timing_concurrency: 0", "shadow.timing_concurrency", "at least 1"),
        ("timing_concurrency: 4", "gates.speed_concurrency", "never have data"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(lines: str, field: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load_text(LEGAL.replace("batch_size: 8", f"batch_size: 8\n  {lines}"))
    assert field in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(("concurrency", "words"), [(1, "requests at concurrency 1"), (4, "blocks at concurrency 2-4")])
def test_the_gates_say_at_which_load_they_were_timed(concurrency: int, words: str) -> None:
    context = make.context(Gates(speed_concurrency=concurrency, ttft_slo_seconds=1.0))
    battery = ControlledBattery(context).main
    nothing = {g.gate: g for g in battery.assess(battery.start())}
    assert (
        words.replace("requests ", "request has been timed in both arms ").replace(
            "blocks ", "block has been timed in both arms "
        )
        in nothing["speed"].sentence
    )
    one = replace(make.timing(0.1, num_tokens=41 * concurrency), concurrency=concurrency)
    pair = replace(timed_pair(ControlledBattery(context), 0, 1.0), baseline_timing=one, candidate_timing=one)
    increments = battery.increments(pair)
    assert increments is not None
    item = replace(pair, increments=pack(increments), calibration_hash="c" * 8)
    state = battery.fold(battery.start(), [_item(item)])
    gates = {g.gate: g for g in battery.assess(state)}
    for name in ("speed", "ttft", "ttft_tail"):
        assert f"timed {words}" in gates[name].sentence, name
        assert (gates[name].n, gates[name].unit) == (1, words.split()[0])
    tail = gates["ttft_tail"]
    assert tail.verdict is Verdict.INCONCLUSIVE
    assert tail.needed is not None
    assert tail.details["needed_requests"] == tail.needed * concurrency


def _item(pair: Pair) -> FoldItem:
    return FoldItem(pair.ordinal, pair.increments, pair.calibration_hash, 0.0)
