"""The fold: bit-equal for any split, exact through text, and refusing whatever would make the sums mean something else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from canary.domain.errors import ConflictError
from canary.domain.evidence import Verdict
from canary.domain.pairs import TRACE_COLUMNS, Columns, DrafterKind, Pair
from canary.domain.traffic import Stratum
from canary.stats.battery import Battery, default_parts, pack, unpack
from canary.stats.pit import Pit
from canary.stats.state import State
from tests.stats.experiments import attempts, battery_of, items
from tests.stats.world import Engine, Item, World

NUM_PAIRS = 40


@pytest.fixture(scope="module")
def setting() -> tuple[Battery, list[Pair], list[Item]]:
    engine = Engine(World.make(), DrafterKind.DENSE, "resample_from_target")
    context, pairs = next(attempts(engine, 1, NUM_PAIRS, seed=5))
    stored = list(items(context, pairs))
    stored[7] = replace(stored[7], increments=None, calibration_hash="")  # tombstones, before and after calibration
    stored[30] = replace(stored[30], increments=None, calibration_hash="")
    return battery_of(context), pairs, stored


def text(state: State) -> str:
    return json.dumps(state.to_json(), sort_keys=True)


def test_any_split_of_the_fold_gives_the_same_bits(setting: tuple[Battery, list[Pair], list[Item]]) -> None:
    battery, _, stored = setting
    whole = text(battery.fold(battery.start(), stored))
    for seed in range(8):
        cuts = sorted(random.Random(seed).sample(range(NUM_PAIRS + 1), 5))
        state = battery.start()
        for low, high in zip([0, *cuts], [*cuts, NUM_PAIRS], strict=True):
            state = State.from_json(json.loads(text(battery.fold(state, stored[low:high]))))
        assert text(state) == whole


def test_counts_and_peaks(setting: tuple[Battery, list[Pair], list[Item]]) -> None:
    battery, _, stored = setting
    bank = battery.parts[0]
    width = len(bank.names(battery.context))
    state, wealth = battery.start(), [0.0]
    for item in stored:
        state = battery.fold(state, [item])
        wealth.append(bank.log_e(battery.context, state.sums[2 : 2 + width])["bank"])
        assert state.peaks["bank.bank"] == max(wealth)
    assert wealth[8] == wealth[7]  # the tombstone at ordinal 7
    assert (state.folded, state.num_pairs, state.num_failed) == (NUM_PAIRS, NUM_PAIRS - 2, 2)
    assert state.newest_pair_at == NUM_PAIRS - 1
    assert state.sums[battery.names.index("strata.sampled")] == NUM_PAIRS - 2
    gate = battery.assess(state)[0]
    assert (gate.gate, gate.verdict, gate.reason) == ("losslessness", Verdict.FAIL, "wrong_residual")
    assert gate.details["recovered_impossible"] > 3  # type: ignore[operator]


def test_folding_leaves_the_given_state_alone(setting: tuple[Battery, list[Pair], list[Item]]) -> None:
    battery, _, stored = setting
    before = battery.start()
    battery.fold(before, stored)
    assert text(before) == text(battery.start())


@pytest.mark.parametrize("order", [[1], [0, 2], [0, 0], [0, 1, 0]])
def test_a_gap_or_a_repeat_is_refused(setting: tuple[Battery, list[Pair], list[Item]], order: list[int]) -> None:
    battery, _, stored = setting
    with pytest.raises(ConflictError, match="ordinal"):
        battery.fold(battery.start(), [stored[i] for i in order])


def test_another_calibration_is_refused(setting: tuple[Battery, list[Pair], list[Item]]) -> None:
    battery, _, stored = setting
    state = battery.fold(battery.start(), stored[:25])
    for named in ("other", ""):
        with pytest.raises(ConflictError, match="calibration"):
            battery.fold(state, [replace(stored[25], calibration_hash=named)])
    uncalibrated = battery_of(replace(battery.context, calibration=None))
    with pytest.raises(ConflictError, match="calibration"):
        uncalibrated.fold(uncalibrated.start(), stored[:21])


def test_another_layout_is_refused(setting: tuple[Battery, list[Pair], list[Item]]) -> None:
    battery, _, stored = setting
    shorter = Battery(battery.context, (Pit(),))
    state = battery.fold(battery.start(), stored[:3])
    for call in (lambda: shorter.fold(state, stored[3:4]), lambda: shorter.assess(state)):
        with pytest.raises(ConflictError, match="layout"):
            call()
    assert stored[0].increments is not None
    with pytest.raises(ConflictError, match="increments"):
        battery.fold(battery.start(), [replace(stored[0], increments=stored[0].increments[8:])])


def test_a_state_of_another_version_is_refused(setting: tuple[Battery, list[Pair], list[Item]]) -> None:
    body = setting[0].start().to_json()
    with pytest.raises(ConflictError, match="version"):
        State.from_json({**body, "version": 0})
    with pytest.raises(ConflictError, match="fields"):
        State.from_json({k: v for k, v in body.items() if k != "layout"})


def test_packing_is_little_endian_and_exact() -> None:
    values = np.array([0.1, -1e-300, 3.0])
    assert pack(values)[:8] == bytes.fromhex("9a9999999999b93f")
    assert (unpack(pack(values)) == values).all()


def changed(pair: Pair, name: str, change: Callable[[np.ndarray], object]) -> Pair:
    """The pair with one trace column altered in place."""
    trace = pair.candidate.trace
    assert trace is not None
    kind, width = TRACE_COLUMNS[name]
    values = np.frombuffer(trace.data[name], kind).reshape(-1, width).copy()
    change(values)
    data = {**trace.data, name: values.tobytes()}
    return replace(pair, candidate=replace(pair.candidate, trace=Columns(trace.num_tokens, data)))


def set_first(value: float) -> Callable[[np.ndarray], object]:
    return lambda values: values.__setitem__((0, 0), value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_prob", 0.01),
        ("log_prob", float("nan")),
        ("log_ratio", float("nan")),
        ("max_prob", 1.1),
        ("pit_id", -0.1),
        ("pit_ratio", 1.5),
        ("tv", float("nan")),
        ("position_in_round", 5),
        ("position_in_round", -1),
        ("provenance", 4),
        ("drafted", 2),
    ],
)
def test_a_trace_that_contradicts_itself_is_set_aside(
    setting: tuple[Battery, list[Pair], list[Item]], name: str, value: float
) -> None:
    battery, pairs, _ = setting
    bad = changed(pairs[25], name, set_first(value))
    assert battery.increments(bad) is None
    assert name in (battery.problem(bad) or "")


def test_malformed_pairs_are_set_aside(setting: tuple[Battery, list[Pair], list[Item]]) -> None:
    battery, pairs, _ = setting
    pair = pairs[25]
    trace = pair.candidate.trace
    assert trace is not None
    tokens = pair.candidate.token_ids
    lacking = Columns(96, {k: v for k, v in trace.data.items() if k != "pit_id"})
    cases = {
        "the drafter vanished": replace(pair, error="the drafter vanished"),
        "trace is missing": replace(pair, candidate=replace(pair.candidate, trace=None)),
        "pit_id": replace(pair, candidate=replace(pair.candidate, trace=lacking)),
        "outside the vocabulary": replace(pair, candidate=replace(pair.candidate, token_ids=(*tokens[:-1], 256))),
        "token -1": replace(pair, candidate=replace(pair.candidate, token_ids=(*tokens[:-1], -1))),
        "describes 96 tokens": replace(pair, candidate=replace(pair.candidate, token_ids=tokens[:-1])),
        "token_ids are empty": replace(pair, baseline=replace(pair.baseline, token_ids=())),
    }
    for words, bad in cases.items():
        assert words in (battery.problem(bad) or ""), words
        assert battery.increments(bad) is None


def test_a_token_outside_the_support_is_evidence_not_a_broken_pair(setting: tuple[Battery, list[Pair], list[Item]]) -> None:
    battery, pairs, _ = setting
    impossible = changed(pairs[25], "log_prob", set_first(float("-inf")))
    usual, found = battery.increments(pairs[25]), battery.increments(impossible)
    assert usual is not None
    assert found is not None
    assert (found - usual)[battery.names.index("bank.unigram@0.9")] > 10


def test_a_failed_arm_and_a_greedy_pair_add_nothing_to_the_sampled_tests(
    setting: tuple[Battery, list[Pair], list[Item]],
) -> None:
    battery, pairs, _ = setting
    failed = replace(pairs[25], candidate=replace(pairs[25].candidate, error="out of memory", token_ids=(), trace=None))
    greedy = replace(pairs[25], stratum=Stratum.GREEDY)
    for pair, column in ((failed, "strata.sampled"), (greedy, "strata.greedy")):
        found = battery.increments(pair)
        assert found is not None
        nonzero = {battery.names[i] for i in np.flatnonzero(found)}
        assert nonzero == {column, f"certificates.{pair.stratum}_pairs"}


def test_the_default_battery_is_whole(setting: tuple[Battery, list[Pair], list[Item]]) -> None:
    names = [part.name for part in default_parts()]
    assert len(set(names)) == len(names)
    battery = Battery(setting[0].context)
    assert len(set(battery.names)) == len(battery.names)
    state = battery.start()
    assert state.peaks["bank.bank"] == 0.0
    gates = [g.gate for g in battery.assess(state)]
    assert gates[0] == "losslessness"
    assert len(set(gates)) == len(gates)
    assert battery.assess(state)[0].verdict is Verdict.NO_DATA
