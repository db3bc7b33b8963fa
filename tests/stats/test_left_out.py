"""A stratum that the flag leaves out neither promotes nor blocks nor kills, and what a policy watches of it is said beside."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pytest

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.modes import Mode, StratumMode
from canary.domain.pairs import Arm
from canary.domain.policy import Gates
from canary.domain.traffic import Stratum
from canary.stats.battery import pack, unpack
from canary.stats.controlled import ControlledBattery
from canary.stats.window import Window
from tests.stats import make
from tests.stats.golden.recorded import read

RECORDED, HISTORY, _ = read()  # sixty requests, nearly all sampled, of an engine with a wrong residual
assert RECORDED.calibration is not None
FROZEN = RECORDED.calibration.hash
WATCHED = replace(RECORDED.gates, strata=(StratumMode("sampled", Mode.WARN, "a test"),))
SAMPLED = frozenset({Stratum.SAMPLED})


@dataclass(frozen=True)
class Item:
    """What the fold reads of a finished ordinal."""

    ordinal: int
    increments: bytes | None
    stratum: Stratum | None
    calibration_hash: str = FROZEN
    stored_at: float = 1.0
    control: bool = False


def built(left_out: frozenset[Stratum] = SAMPLED, gates: Gates = WATCHED) -> ControlledBattery:
    return ControlledBattery(replace(RECORDED, gates=gates), asked=False, left_out=left_out)


def own(count: int, ratio: float = 2.0, accepted: int = 3) -> list[Item]:
    """Greedy requests without a fault."""
    steps = 40 // (accepted + 1)
    pair = make.pair(
        stratum=Stratum.GREEDY,
        baseline=make.generation(Arm.BASELINE, k=0, steps=[(0, 0)] * 40, scored=make.rows([0.0] * 40)),
        candidate=make.generation(steps=[(4, accepted)] * steps, scored=make.rows([0.0] * 40)),
        timings=(make.timing(0.1 * ratio), make.timing(0.1)),
    )
    ((why, increments),) = built().main.examine([pair])
    assert increments is not None, why
    return [Item(i, pack(increments), Stratum.GREEDY) for i in range(count)]


def faulty() -> list[Item]:
    """The recorded sampled requests, tombstone included, which are killed after a few."""
    made = []
    for item in HISTORY:
        greedy = item.increments is not None and unpack(item.increments)[0] == 1.0
        if not greedy:
            made.append(Item(item.ordinal, item.increments, Stratum.SAMPLED))
    return made


def in_turn(*kinds: Sequence[Item]) -> list[Item]:
    """The kinds one after the other, ordinal by ordinal."""
    taken = [item for at in range(max(map(len, kinds))) for kind in kinds for item in kind[at : at + 1]]
    return [replace(item, ordinal=ordinal) for ordinal, item in enumerate(taken)]


def gates(battery: ControlledBattery, items: Iterable[Item]) -> dict[str, GateEvidence]:
    return {g.gate: g for g in battery.assess(battery.fold(battery.start(), items))}


def test_a_left_out_stratum_changes_no_gate_of_what_the_flag_takes() -> None:
    """Neither its faults kill or block nor its successes promote: every gate is what the taken stratum gives alone."""
    alone, beside = gates(built(), in_turn(own(40))), gates(built(), in_turn(own(40), faulty()))
    assert {name: beside[name] for name in alone} == alone
    assert alone["losslessness"].verdict is Verdict.PASS
    pooled = gates(built(frozenset()), in_turn(own(40), faulty()))
    assert pooled["losslessness"].verdict is Verdict.FAIL, "or this test says nothing"
    for name in ("acceptance", "errors", "completeness"):
        assert pooled[name].n > alone[name].n, name


def test_what_it_says_is_shown_and_none_of_it_is_a_safety_gate() -> None:
    found = gates(built(), in_turn(own(40), faulty()))
    beside = found["losslessness_sampled"]
    assert (beside.verdict, beside.role) == (Verdict.FAIL, GateRole.EQUIVALENCE)
    assert {"bank_certificate", "pit_certificate", "request_certificate"} <= set(found)
    assert all(WATCHED.mode_of(name) is Mode.WARN for name in set(found) - set(gates(built(), in_turn(own(40)))))
    assert "strata" not in found, "what the flag never takes is not untested traffic"


def test_without_a_mode_it_is_shown_nowhere_and_counts_nowhere() -> None:
    plain = replace(RECORDED.gates, strata=())
    assert gates(built(gates=plain), in_turn(own(40), faulty())) == gates(built(gates=plain), in_turn(own(40)))


def test_lost_ordinals_of_it_are_not_held_against_the_route() -> None:
    battery = built()
    lost = [Item(i, None, Stratum.SAMPLED) for i in range(50)]
    state = battery.fold(battery.start(), in_turn(lost, own(30)))
    assert (state.main.num_failed, state.main.num_pairs, state.folded) == (0, 30, 80)
    unknown = battery.fold(battery.start(), [Item(0, None, None)])
    assert unknown.main.num_failed == 1, "a claim from before strata were kept counts"


def test_a_pair_against_itself_counts_in_the_harness_whatever_its_stratum() -> None:
    battery = built()
    assert not battery.leaves_out(Stratum.SAMPLED, control=True)
    assert battery.leaves_out(Stratum.SAMPLED, control=False)
    assert not battery.leaves_out(Stratum.GREEDY, control=False)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_the_states_survive_text_and_any_split(size: int) -> None:
    battery, items = built(), in_turn(own(20), faulty()[:20])
    whole, state = battery.fold(battery.start(), items), battery.start()
    for start in range(0, len(items), size):
        state = battery.fold(battery.load(json.loads(json.dumps(state.to_json()))), items[start : start + size])
    assert json.dumps(state.to_json(), sort_keys=True) == json.dumps(whole.to_json(), sort_keys=True)


def test_a_record_from_before_goes_on_at_the_next_ordinal() -> None:
    battery, items = built(), in_turn(own(20), faulty()[:20])
    before = {name: kept for name, kept in battery.fold(battery.start(), items[:10]).to_json().items() if name != "left_out"}
    again = battery.load(before)
    assert again.left_out is not None
    assert (again.left_out.folded, again.left_out.num_pairs) == (10, 0)


def test_a_policy_that_takes_everything_keeps_the_very_record_it_kept() -> None:
    battery, items = built(frozenset()), in_turn(own(5), faulty()[:5])
    found = battery.fold(battery.start(), items)
    assert set(found.to_json()) == {"battery", "control"}
    assert json.dumps(found.main.to_json()) == json.dumps(battery.main.fold(battery.main.start(), items).to_json())


def test_a_stages_window_passes_it_by_too() -> None:
    battery, items = built(), in_turn(own(40), faulty())
    window = Window(battery.main, 2, battery.counts)
    state = window.fold(window.start("canary-5", 0), items)
    found = {g.gate: g for g in window.judge(state, battery.assess(battery.fold(battery.start(), items)))}
    assert (found["speed"].n, found["acceptance"].n, found["acceptance"].value) == (40, 40, 0.75)
