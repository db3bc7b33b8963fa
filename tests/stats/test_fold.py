"""The fold of the whole battery: the bits of one addition per ordinal, for any split, and every part alike at any width."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from canary.domain.traffic import Stratum
from canary.stats import fold, losslessness
from canary.stats.battery import unpack
from canary.stats.part import Chained
from canary.stats.state import State
from tests.stats.histories import History, record

REQUESTS = 60


@pytest.fixture(scope="module")
def history() -> History:
    return record(REQUESTS, seed=3)


def text(state: State) -> str:
    return json.dumps(state.to_json(), sort_keys=True)


def test_running_sums_are_additions_in_order() -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((500, 37)) * 10.0 ** rng.integers(-12, 12, (500, 37))
    total = np.zeros(37)
    by_hand = [total := total + row for row in table]
    assert (fold._running(np.zeros(37), table) == np.stack(by_hand)).all()
    assert (np.add.accumulate(table, axis=0) == np.stack(by_hand)).all()


@pytest.mark.parametrize("seed", range(12))
def test_any_split_gives_the_same_bits_of_sums_peaks_carries_and_watch(
    history: History, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    battery, rng = history.battery, random.Random(seed)
    whole = text(battery.fold(battery.start(), history.items))
    monkeypatch.setattr(fold, "CHUNK", rng.choice([1, 2, 7, 1024]))
    cuts = sorted(rng.sample(range(REQUESTS + 1), rng.randrange(REQUESTS)))
    state = battery.start()
    for low, high in zip([0, *cuts], [*cuts, REQUESTS], strict=True):
        state = State.from_json(json.loads(text(battery.fold(state, history.items[low:high]))))
    assert text(state) == whole


def test_the_fold_is_one_addition_per_ordinal(history: History) -> None:
    battery = history.battery
    state, total, carries = battery.start(), np.zeros(len(battery.names)), {}
    for place in battery.layout.places:
        if isinstance(place.part, Chained):
            carries[place.part.name] = place.part.first_carry(battery.context)
    kill = None
    for item in history.items:
        state = battery.fold(state, [item])
        if item.increments is None:
            continue
        stored, added = unpack(item.increments), np.zeros(len(battery.names))
        added[: len(Stratum)] = stored[: len(Stratum)]
        for place in battery.layout.places:
            found = stored[place.stored][None]
            if isinstance(place.part, Chained):
                found, carries[place.part.name] = place.part.chain(battery.context, found, carries[place.part.name])
            added[place.sums] = found[0]
        total = total + added
        assert (state.sums == total).all()
        now = losslessness.log_kill_e(battery.e_values(state), battery.strata(state))
        kill = now if kill is None else max(kill, now)
        assert state.kill_peak == pytest.approx(kill, abs=1e-12)


def test_every_part_reads_many_ordinals_as_it_reads_one(history: History) -> None:
    battery = history.battery
    states = [battery.start()]
    for item in history.items:
        states.append(battery.fold(states[-1], [item]))
    table = np.stack([state.sums for state in states])
    for place in battery.layout.places:
        many = place.part.log_e(battery.context, table[:, place.sums])
        for at in range(len(states)):
            one = place.part.log_e(battery.context, table[at, place.sums])
            assert {key: float(value[at]) for key, value in many.items()} == {key: float(v) for key, v in one.items()}, (
                place.part.name
            )


def test_one_stratum_after_the_other_keeps_its_own_weights(history: History) -> None:
    rng = np.random.default_rng(1)
    log_e = {key: rng.normal(size=9) for key in ("bank", "pit_id", "pit_ratio", "greedy_gap", "row_outliers")}
    strata = np.array([[0, 0], [1, 0], [2, 0], [2, 0], [2, 1], [3, 1], [3, 2], [4, 2], [4, 3]], dtype=float)
    many = fold.log_kill(log_e, strata)
    for at, counts in enumerate(strata):
        present = dict(zip(Stratum, counts, strict=True))
        one = losslessness.log_kill_e({key: float(value[at]) for key, value in log_e.items()}, present)
        assert many[at] == pytest.approx(one, abs=1e-14)
