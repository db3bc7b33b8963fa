"""The economy window: its budget is true, it starts at nothing, and what it does not restart stays as it was to the bit."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np
import pytest

from canary.domain import budget
from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.pairs import Arm
from canary.domain.policy import Gates
from canary.domain.traffic import Stratum
from canary.flow.ports import FoldItem
from canary.stats.acceptance import Acceptance
from canary.stats.battery import Battery, pack
from canary.stats.bounded import log_budget
from canary.stats.errors import Errors
from canary.stats.greedy import Greedy
from canary.stats.part import Context
from canary.stats.speed import Speed
from canary.stats.ttft import Ttft
from canary.stats.window import RESTARTED, Window, WindowState
from tests.stats import make

GATES = Gates(speed_ratio=1.2, ttft_slo_seconds=1.0)


def battery(alpha: float = 0.01) -> Battery:
    """A small one, with a part that never restarts between those that do."""
    context: Context = replace(make.context(GATES), alpha=alpha)
    return Battery(context, (Greedy(), Acceptance(), Errors(), Speed(), Ttft()))


@lru_cache(maxsize=4)
def increments(ratio: float) -> bytes:
    """What a pair stores whose candidate is so many times as fast."""
    pair = make.pair(
        stratum=Stratum.GREEDY,
        baseline=make.generation(Arm.BASELINE, k=0, steps=[(0, 0)] * 40),
        candidate=make.generation(steps=[(0, 0), *[(4, 2)] * 13]),
        timings=(make.timing(0.1 * ratio), make.timing(0.1)),
    )
    found = battery().increments(pair)
    assert found is not None
    return pack(found)


def item(ordinal: int, ratio: float, *, control: bool = False) -> FoldItem:
    return FoldItem(ordinal, increments(ratio), make.CALIBRATION.hash, float(ordinal), control)


def gates(main: Battery, window: Window, state: WindowState, items: list[FoldItem]) -> dict[str, GateEvidence]:
    whole = main.fold(main.start(), [i for i in items if not i.control])
    return {g.gate: g for g in window.judge(state, main.assess(whole))}


def test_a_window_counts_from_its_first_ordinal_and_leaves_the_others_alone() -> None:
    main = battery()
    items = [item(i, 2.0 if i < 60 else 0.9) for i in range(120)]
    window = Window(main, 2)
    state = window.fold(window.start("canary-5", 60), items[60:])
    whole = {g.gate: g for g in main.assess(main.fold(main.start(), items))}
    found = gates(main, window, state, items)
    assert whole["speed"].verdict is Verdict.PASS
    assert (found["speed"].verdict, found["speed"].n) == (Verdict.FAIL, 60)
    assert (found["acceptance"].n, found["ttft"].n, found["ttft_tail"].n) == (60, 60, 60)
    assert {name for name in found if found[name] != whole[name]} == {"acceptance", "speed", "ttft", "ttft_tail"}
    assert found["speed"].details["window"] == {"stage": "canary-5", "from_ordinal": 60, "alpha": budget.window_alpha(0.01, 2)}
    assert "Counted from ordinal 60 on, where stage canary-5 began." in found["speed"].sentence
    assert all(g.role is GateRole.ECONOMY for g in found.values() if "window" in g.details)


def test_an_empty_window_has_no_data_however_good_the_shadow_was() -> None:
    main, items = battery(), [item(i, 2.0) for i in range(80)]
    window = Window(main, 2)
    found = gates(main, window, window.start("canary-5", 80), items)
    assert [found[name].verdict for name in ("acceptance", "speed", "ttft")] == [Verdict.NO_DATA] * 3
    assert found["errors"].n == 80


def test_every_restarted_gate_is_one_of_the_economy() -> None:
    parts = {"acceptance": Acceptance(), "speed": Speed(), "ttft": Ttft()}
    assert tuple(parts) == RESTARTED
    for part in parts.values():
        nothing = make.fold(part, make.context(GATES), [])
        assert {g.role for g in part.assess(make.context(GATES), nothing)} == {GateRole.ECONOMY}


def test_any_split_gives_the_same_bits_and_json_keeps_them() -> None:
    main, dice = battery(), np.random.default_rng(5)
    items = [item(i, (1.5, 1.0)[int(dice.integers(2))], control=i % 7 == 3) for i in range(10, 90)]
    window = Window(main, 3)
    whole = window.fold(window.start("canary-10", 10), items)
    state = window.start("canary-10", 10)
    for at in range(0, len(items), 9):
        state = WindowState.from_json(json.loads(json.dumps(state.to_json())))
        state = window.fold(state, items[at : at + 9])
    assert json.dumps(state.to_json(), sort_keys=True) == json.dumps(whole.to_json(), sort_keys=True)
    assert (whole.state.folded, whole.state.num_pairs) == (90, sum(not i.control for i in items))


def test_a_tombstone_is_passed_by() -> None:
    window = Window(battery(), 2)
    state = window.fold(window.start("canary-5", 4), [FoldItem(4, None, "", 0.0), item(5, 1.5)])
    assert (state.state.folded, state.state.num_pairs) == (6, 1)


def test_windows_share_the_attempts_budget_as_the_document_says() -> None:
    spent = [budget.window_alpha(0.01, j) for j in range(1, 2000)]
    assert spent[0] == 0.01, "the shadow decides at the attempt's alpha, as it does where nothing restarts"
    assert spent == sorted(spent, reverse=True)
    assert sum(spent) <= budget.lifetime_alpha(0.01)
    window = Window(battery(), 3)
    assert window.judge(window.start("s", 0), []) == ()


def test_the_budget_is_true_by_enumeration() -> None:
    """Every sequence of coin flips at the very threshold: the shadow's window until it claims, then the next stage's.

    A claim is the median proven to be above, or below. Wealth of either window has mean 1 at most, so that both claims together
    stay within the union bound, and so does a promotion, which has to win in both windows.
    """
    alphas = [budget.window_alpha(0.4, j) for j in (1, 2)]
    length, faster, slower = 12, increments(2.0), increments(0.5)
    part, context = Speed(), make.context(GATES)
    place = next(p for p in battery().layout.places if p.part.name == "speed")
    steps = [np.frombuffer(block, "<f8")[place.stored] for block in (faster, slower)]

    @cache
    def claimed(ups: int, downs: int) -> tuple[float, float]:
        log_e = part.log_e(context, ups * steps[0] + downs * steps[1])
        return float(log_e["speed.above"]), float(log_e["speed.below"])

    falsely = promoted = entered = 0.0
    mean = np.zeros((2, 2))  # [window, above and below], each stopped where the next one opens
    for flips in np.ndindex(*(2,) * length):
        window, ups, downs, won, false = 0, 0, 0, [False, False], False
        wealth = claimed(0, 0)
        for flip in flips:
            ups, downs = ups + (flip == 0), downs + (flip == 1)
            wealth = claimed(ups, downs)
            above = wealth[0] >= log_budget(alphas[window])
            false |= above or wealth[1] >= log_budget(alphas[window])
            won[window] |= above
            if above and window == 0:
                mean[0] += np.exp(wealth) / 2**length
                window, ups, downs, wealth = 1, 0, 0, claimed(0, 0)
        mean[window] += np.exp(wealth) / 2**length
        entered += won[0] / 2**length
        falsely += false / 2**length
        promoted += all(won) / 2**length
    assert mean[0].max() <= 1 + 1e-12
    assert mean[1].max() <= entered * (1 + 1e-12), "the next window starts from nothing, whenever it opens"
    assert 0 < falsely <= 2 * sum(alphas)
    assert promoted <= alphas[0] * alphas[1] * (1 + 1e-12), "each window has to be won from nothing"


@pytest.mark.parametrize("truth", [1.2, 1.6])
def test_false_claims_stay_rare_over_all_stages_and_a_faster_candidate_gets_through(truth: float) -> None:
    """Four windows of 60 requests with noise around the threshold (1.2), or around 1.6."""
    main, dice = battery(), np.random.default_rng(11)
    above = below = through = 0
    runs = 30
    for _ in range(runs):
        won = []
        for number in range(1, 5):
            window = Window(main, number)
            ratios = truth * np.exp(0.2 * dice.standard_normal(60))
            items = [item(i, 2.0 if r > 1.2 else 0.5) for i, r in enumerate(ratios)]
            state = window.fold(window.start(f"stage-{number}", 0), items)
            peaks, alpha = state.state.peaks, budget.window_alpha(0.01, number)
            won.append(peaks["speed.speed.above"] >= log_budget(alpha))
            below += peaks["speed.speed.below"] >= log_budget(alpha)
        above += any(won)
        through += all(won)
    if truth == 1.2:
        assert above + below <= 3  # .0139 each way of 30 runs, and three standard errors
        assert through == 0
    else:
        assert through == runs
        assert below == 0
