"""The fold: bit-equal for any split, exact through text, and refusing whatever would make the sums mean something else."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from canary.domain.errors import ConflictError
from canary.domain.evidence import GateRole, Verdict
from canary.domain.traffic import Stratum
from canary.stats import completeness
from canary.stats.battery import Battery, default_parts, pack, unpack
from canary.stats.pit import Pit
from canary.stats.state import State
from tests.stats.experiments import NUM_PAIRS, Setting, battery_of


def text(state: State) -> str:
    return json.dumps(state.to_json(), sort_keys=True)


def test_any_split_of_the_fold_gives_the_same_bits(setting: Setting) -> None:
    battery, _, stored = setting
    whole = text(battery.fold(battery.start(), stored))
    for seed in range(8):
        cuts = sorted(random.Random(seed).sample(range(NUM_PAIRS + 1), 5))
        state = battery.start()
        for low, high in zip([0, *cuts], [*cuts, NUM_PAIRS], strict=True):
            state = State.from_json(json.loads(text(battery.fold(state, stored[low:high]))))
        assert text(state) == whole


def test_counts_and_peaks(setting: Setting) -> None:
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


def test_folding_leaves_the_given_state_alone(setting: Setting) -> None:
    battery, _, stored = setting
    before = battery.start()
    battery.fold(before, stored)
    assert text(before) == text(battery.start())


@pytest.mark.parametrize("order", [[1], [0, 2], [0, 0], [0, 1, 0]])
def test_a_gap_or_a_repeat_is_refused(setting: Setting, order: list[int]) -> None:
    battery, _, stored = setting
    with pytest.raises(ConflictError, match="ordinal"):
        battery.fold(battery.start(), [stored[i] for i in order])


def test_another_calibration_is_refused(setting: Setting) -> None:
    battery, _, stored = setting
    state = battery.fold(battery.start(), stored[:25])
    for named in ("other", ""):
        with pytest.raises(ConflictError, match="calibration"):
            battery.fold(state, [replace(stored[25], calibration_hash=named)])
    uncalibrated = battery_of(replace(battery.context, calibration=None))
    with pytest.raises(ConflictError, match="calibration"):
        uncalibrated.fold(uncalibrated.start(), stored[:21])


def test_another_layout_is_refused(setting: Setting) -> None:
    battery, _, stored = setting
    shorter = Battery(battery.context, (Pit(),))
    state = battery.fold(battery.start(), stored[:3])
    for call in (lambda: shorter.fold(state, stored[3:4]), lambda: shorter.assess(state)):
        with pytest.raises(ConflictError, match="layout"):
            call()
    assert stored[0].increments is not None
    with pytest.raises(ConflictError, match="increments"):
        battery.fold(battery.start(), [replace(stored[0], increments=stored[0].increments[8:])])


def test_a_state_of_another_version_is_refused(setting: Setting) -> None:
    body = setting[0].start().to_json()
    with pytest.raises(ConflictError, match="version"):
        State.from_json({**body, "version": 0})
    with pytest.raises(ConflictError, match="fields"):
        State.from_json({k: v for k, v in body.items() if k != "layout"})


def test_packing_is_little_endian_and_exact() -> None:
    values = np.array([0.1, -1e-300, 3.0])
    assert pack(values)[:8] == bytes.fromhex("9a9999999999b93f")
    assert (unpack(pack(values)) == values).all()


def test_a_failed_arm_and_a_greedy_pair_add_nothing_to_the_sampled_tests(
    setting: Setting,
) -> None:
    battery, pairs, _ = setting
    failed = replace(pairs[25], candidate=replace(pairs[25].candidate, error="out of memory", token_ids=(), trace=None))
    greedy = replace(pairs[25], stratum=Stratum.GREEDY)
    for pair, column in ((failed, "strata.sampled"), (greedy, "strata.greedy")):
        found = battery.increments(pair)
        assert found is not None
        nonzero = {battery.names[i] for i in np.flatnonzero(found)}
        assert nonzero == {column, f"certificates.{pair.stratum}_pairs"}


@pytest.mark.parametrize(
    ("folded", "lost", "verdict", "reason"),
    [
        (0, 0, Verdict.NO_DATA, "no_data"),
        (1, 0, Verdict.PASS, "few_lost"),
        (19, 1, Verdict.NO_DATA, "too_few"),
        (20, 1, Verdict.PASS, "few_lost"),
        (20, 2, Verdict.FAIL, "too_many_lost"),
        (400, 20, Verdict.PASS, "few_lost"),
        (400, 21, Verdict.FAIL, "too_many_lost"),
    ],
)
def test_lost_requests_say_that_the_measuring_is_broken(folded: int, lost: int, verdict: Verdict, reason: str) -> None:
    gate = completeness.judge(folded, lost)
    assert (gate.gate, gate.role) == ("completeness", GateRole.HARNESS)
    assert (gate.verdict, gate.reason, gate.n) == (verdict, reason, folded)


def test_lost_ordinals_reach_the_gate(setting: Setting) -> None:
    battery, _, stored = setting
    holes = [replace(item, increments=None, calibration_hash="") if item.ordinal % 5 == 4 else item for item in stored]
    for items_, verdict in ((stored, Verdict.PASS), (holes, Verdict.FAIL)):
        gates = {g.gate: g for g in battery.assess(battery.fold(battery.start(), items_))}
        assert gates["completeness"].verdict is verdict
    assert "10 of 40 requests were lost or set aside" in gates["completeness"].sentence


def test_a_stratum_that_is_too_rare_to_be_tested_is_never_promoted(setting: Setting) -> None:
    battery, pairs, stored = setting
    assert not any(g.gate == "strata" for g in battery.assess(battery.fold(battery.start(), stored)))
    greedy = battery.increments(replace(pairs[25], stratum=Stratum.GREEDY))
    assert greedy is not None
    rare = replace(stored[25], increments=pack(greedy))
    (gate,) = (g for g in battery.assess(battery.fold(battery.start(), [*stored[:25], rare])) if g.gate == "strata")
    assert (gate.role, gate.verdict, gate.reason) == (GateRole.EQUIVALENCE, Verdict.INCONCLUSIVE, "stratum_untested")
    assert "1 of 25 requests are greedy" in gate.sentence
    assert gate.details == {"untested": {"greedy": 1}}
    more = [replace(rare, ordinal=i) for i in range(25, 28)]
    assert not any(g.gate == "strata" for g in battery.assess(battery.fold(battery.start(), [*stored[:25], *more])))


def test_the_default_battery_is_whole(setting: Setting) -> None:
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
