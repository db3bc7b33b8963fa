"""The A/A arm: a fair harness stays under the limit, a broken one passes it and is named, no state sees the other's pairs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from canary.domain.errors import ConflictError
from canary.domain.evidence import GateRole, Verdict
from canary.domain.pairs import Arm, DrafterKind, Generation, Pair
from canary.domain.traffic import Stratum
from canary.stats import control, losslessness
from canary.stats.battery import pack
from canary.stats.control import WORDS, control_battery, judge
from canary.stats.control_clock import Clock
from canary.stats.controlled import ControlledBattery, ControlledState
from tests.stats import controls, make
from tests.stats.controls import Item
from tests.stats.world import World

LIMIT = math.log(1000.0)


@pytest.fixture(scope="module")
def world() -> World:
    torch.set_num_threads(1)
    return World.make()


def plain(arm: Arm, tv: float | list[float] = 0.0) -> Generation:
    """An answer of k = 0 with scored rows, 40 tokens in 40 steps."""
    rows = make.rows(tv if isinstance(tv, list) else [tv] * 40)
    return make.generation(arm, k=0, steps=[(0, 0)] * 40, scored=rows)


def timed(ratio: float, ordinal: int = 0, *, fails: Arm | None = None) -> Pair:
    """A greedy A/A pair whose candidate's seat is `ratio` times as fast."""
    arms = {arm: controls.failed(arm) if fails is arm else plain(arm) for arm in Arm}
    timings = (make.timing(0.1), make.timing(0.1 / ratio))
    made = make.pair(ordinal, stratum=Stratum.GREEDY, baseline=arms[Arm.BASELINE], candidate=arms[Arm.CANDIDATE], timings=timings)
    return replace(made, control=True)


# One observation says something to every term, and the seats can be exchanged.
FAIR = [
    (0.4, timed(1.3)),
    (0.4, timed(1 / 1.3)),
    (0.1, timed(1.0)),
    (0.05, timed(1.3, fails=Arm.CANDIDATE)),
    (0.05, timed(1 / 1.3, fails=Arm.BASELINE)),
]


def expectation(outcomes: list[tuple[float, Pair]], length: int) -> float:
    """E of the control's e-value after so many independent pairs, by visiting every sequence."""
    built = control_battery(make.context())
    added = np.array([controls.fold(built, [pair]).sums for _, pair in outcomes])
    chosen = np.array(list(product(range(len(outcomes)), repeat=length)))  # [sequences, length]
    sums = added[chosen].sum(axis=1)
    log_e = {key: v for p in built.layout.places for key, v in p.part.log_e(built.context, sums[:, p.sums]).items()}
    chance = np.array([weight for weight, _ in outcomes])[chosen].prod(axis=1)
    return float((chance * np.exp(control.log_control_e(log_e, sums[:, : len(Stratum)]))).sum())


def test_the_mean_of_the_e_value_never_exceeds_one() -> None:
    for length in (1, 2, 3, 4, 5):
        assert expectation(FAIR, length) <= 1 + 1e-12


def test_an_unfair_clock_is_found_out_by_the_same_enumeration() -> None:
    unfair = [(0.95, timed(1.3)), (0.05, timed(1 / 1.3))]
    assert expectation(unfair, 8) > 2


def test_the_clock_bets_on_either_side_alike_and_leaves_out_what_it_cannot_compare() -> None:
    clock, where = Clock(), make.context()
    faster, slower = (make.fold(clock, where, [timed(r, i) for i in range(12)]) for r in (1.2, 1 / 1.2))
    assert clock.log_e(where, faster.values)["clock"] == clock.log_e(where, slower.values)["clock"] > math.log(100)
    even = make.fold(clock, where, [timed(1.2 if i % 2 else 1 / 1.2, i) for i in range(40)])
    assert clock.log_e(where, even.values)["clock"] < 0
    odd = [timed(1.0), make.pair(timings=(make.timing(0.1), None))]
    odd += [make.pair(timings=(make.timing(0.1, num_tokens=3), make.timing(0.1)))]
    odd += [make.pair(timings=(make.timing(0.1), make.timing(0.0)))]
    left = make.fold(clock, where, odd)
    assert [left[name] for name in Clock.counts] == [1, 0, 0, 1, 1, 1, 1]
    assert clock.log_e(where, left.values)["clock"] == 0.0
    assert clock.assess(where, left) == []


def test_twenty_signs_on_one_side_pass_the_limit() -> None:
    """Of three terms one alone has to be worth 3,000: 2^20 / 21 is 50,000, 2^14 / 15 is 1,100."""
    built = control_battery(make.context())
    states = {n: controls.fold(built, [timed(1.3, i) for i in range(n)]) for n in (14, 20)}
    verdicts = {n: judge(built, state) for n, state in states.items()}
    assert verdicts[14].verdict is Verdict.PASS
    assert (verdicts[20].verdict, verdicts[20].details["loudest"]) == (Verdict.FAIL, "clock")


def test_fair_runs_stay_under_the_limit(world: World) -> None:
    """A tenth of the full size; the chance that any of 50 passes 1,000 is below one in twenty by Markov alone."""
    peaks = controls.log_peaks(world, 50, 6, seed=11_000_000)
    assert sum(peak >= LIMIT for peak in peaks) == 0
    assert sum(peak >= math.log(20) for peak in peaks) <= 5
    assert len(set(peaks)) == 50


@pytest.mark.parametrize(
    ("broken", "requests", "loudest"),
    [
        (controls.off_by_one, 6, "bank"),
        (controls.slow_second_seat, 80, "clock"),
        (controls.failing_seat, 100, "errors"),
    ],
)
def test_a_broken_harness_passes_the_limit_and_is_named(
    world: World, broken: Callable[[Pair, random.Random], Pair], requests: int, loudest: str
) -> None:
    built = controls.battery()
    gate = judge(built, controls.fold(built, controls.pairs(world, requests, 5, broken)))
    assert (gate.gate, gate.role, gate.verdict, gate.reason) == ("control", GateRole.HARNESS, Verdict.FAIL, "harness_at_fault")
    assert gate.details["loudest"] == loudest
    assert gate.sentence.startswith("The harness, not the candidate, is at fault")
    assert gate.sentence.endswith(f"{WORDS[loudest]}.")
    assert gate.value is not None
    assert gate.value >= 1000


def test_far_rows_of_one_seat_pass_the_limit_and_near_ones_are_the_noise_floor() -> None:
    def scored(far: int, ordinal: int) -> Pair:
        tv = [0.5] * far + [0.03] * (40 - far)
        seats = plain(Arm.BASELINE, 0.01), plain(Arm.CANDIDATE, tv)
        return replace(make.pair(ordinal, stratum=Stratum.GREEDY, baseline=seats[0], candidate=seats[1]), control=True)

    built = control_battery(make.context())
    quiet = judge(built, controls.fold(built, [scored(0, i) for i in range(10)]))
    assert (quiet.verdict, quiet.reason, quiet.n) == (Verdict.PASS, "quiet", 10)
    assert "after 10 pairs; greedy rows are 0.0300 from the reference, against 0.0100." in quiet.sentence
    loud = judge(built, controls.fold(built, [scored(8, i) for i in range(20)]))
    assert (loud.verdict, loud.details["loudest"]) == (Verdict.FAIL, "row_outliers")


def test_the_largest_value_counts_and_no_pair_is_no_data() -> None:
    built = control_battery(make.context())
    crossed = controls.fold(built, [timed(1.3, i) for i in range(20)])
    later = built.fold(crossed, [Item(i, pack(built.increments(timed(1 / 1.3))), "c" * 8) for i in range(20, 40)])  # type: ignore[arg-type]
    gate = judge(built, later)
    assert gate.verdict is Verdict.FAIL
    assert isinstance(gate.details["log_e"], float)
    assert gate.details["log_e"] < 0
    lost = built.fold(built.start(), [Item(0, None)])
    empty = judge(built, lost)
    assert (empty.verdict, empty.n, empty.needed) == (Verdict.NO_DATA, 0, 1)
    assert "1 were lost" in empty.sentence


def test_every_term_has_words() -> None:
    everything = dict.fromkeys(WORDS, 0.0)
    weighed = losslessness.weights(everything, dict.fromkeys(Stratum, 1.0))
    assert set(weighed) | {"errors", "clock"} == set(WORDS)
    built = control_battery(make.context())
    assert set(losslessness.weights(built.e_values(built.start()), dict.fromkeys(Stratum, 1.0))) <= set(WORDS)


def interleaved() -> tuple[ControlledBattery, list[Item]]:
    """Greedy pairs of both kinds, with a tombstone of each."""
    built, draw, items = ControlledBattery(make.context()), random.Random(3), []
    for ordinal in range(90):
        mine = draw.random() < 0.3
        pair = timed(draw.choice((1.3, 1 / 1.4, 1.0)), ordinal)
        if not mine:
            pair = replace(
                pair, control=False, candidate=replace(pair.candidate, stats=make.generation(steps=[(0, 0)] * 40).stats)
            )
        found = built.of(control=mine).increments(pair)
        assert found is not None
        lost = ordinal in (20, 47) or draw.random() < 0.02
        items.append(Item(ordinal, None if lost else pack(found), "" if lost else "c" * 8, float(ordinal), mine))
    return built, items


def same(one: ControlledState, other: ControlledState) -> bool:
    return one.to_json() == other.to_json()


def test_the_fold_is_bit_equal_for_any_split() -> None:
    built, items = interleaved()
    whole = built.fold(built.start(), items)
    for seed in range(5):
        draw, state, at = random.Random(seed), built.start(), 0
        while at < len(items):
            size = draw.randint(1, 17)
            state = built.fold(built.load(state.to_json()), items[at : at + size])
            at += size
        assert same(state, whole)


def test_neither_state_sees_the_others_pairs() -> None:
    built, items = interleaved()
    state = built.fold(built.start(), items)
    for kind, half in ((False, state.main), (True, state.control)):
        mine = [i for i in items if i.control is kind]
        alone = built.of(control=kind)
        dense = [replace(item, ordinal=at) for at, item in enumerate(mine)]
        wanted = alone.fold(alone.start(), dense)
        assert half.sums.tolist() == wanted.sums.tolist()
        assert (half.peaks, half.kill_peak, half.carries.keys()) == (wanted.peaks, wanted.kill_peak, wanted.carries.keys())
        assert (half.num_pairs, half.num_failed) == (wanted.num_pairs, wanted.num_failed)
        assert (half.folded, wanted.folded) == (90, len(mine))
    gates = {g.gate: g for g in built.assess(state)}
    assert gates["completeness"].n == state.main.num_pairs + state.main.num_failed
    assert gates["control"].n == state.control.num_pairs
    assert "control" not in {g.gate for g in ControlledBattery(make.context(), asked=False).assess(state)}


def test_a_gap_and_a_pair_of_the_other_kind_are_refused() -> None:
    built, items = interleaved()
    with pytest.raises(ConflictError, match="ordinal 1 cannot be folded after -1"):
        built.fold(built.start(), items[1:])
    kind = items[0].control
    with pytest.raises(ConflictError, match="increments"):
        built.fold(built.start(), [replace(items[0], control=not kind)])


def test_drafter_built_alternatives_are_inert(world: World) -> None:
    built = control_battery(replace(make.context(), drafter_kind=DrafterKind.ONE_HOT, vocab_size=256))
    state = controls.fold(built, controls.pairs(world, 5, 2))
    bank = built.sums_of(state, "bank")
    assert built.context.num_speculative_tokens == 0
    for name in ("draft", "residual", "over_rejection", "typical"):
        assert abs(bank[f"{name}@0.9"]) < 1e-6
    assert abs(bank["hot@0.9"]) > 1
