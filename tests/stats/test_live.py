"""Live gates: exact validity by enumeration, seeded false alarms also under an outage, power, and folding in any split."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from canary.domain.errors import ConflictError
from canary.domain.evidence import Source, Verdict
from canary.domain.observations import Observation
from canary.domain.pairs import Arm
from canary.domain.policy import Gates
from canary.stats.bounded import log_budget
from canary.stats.live import COMPARED, LiveState, fold
from canary.stats.live_gates import WORDING, judge
from tests.stats.live_traffic import CONTEXT, SINCE, START, Draw, decided_at, gate, seen, traffic, with_live

C, B = Arm.CANDIDATE, Arm.BASELINE


def errors(candidate: float, baseline: float) -> Draw:
    def draw(dice: np.random.Generator, arm: Arm) -> dict[str, Any]:
        return {"finish_reason": "error" if dice.random() < (candidate if arm is C else baseline) else "stop"}

    return draw


def likely(name: str, candidate: float, baseline: float) -> Draw:
    values = {"task_success": (True, False), "valid": (False, True), "thumbs": (1, -1)}[name]

    def draw(dice: np.random.Generator, arm: Arm) -> dict[str, Any]:
        return {name: values[0] if dice.random() < (candidate if arm is C else baseline) else values[1]}

    return draw


def seconds(name: str, ratio: float, spread: float = 0.3) -> Draw:
    """Log-normal times with a tail; the candidate's are `ratio` times the baseline's."""

    def draw(dice: np.random.Generator, arm: Arm) -> dict[str, Any]:
        stall = 10.0 if dice.random() < 0.01 else 1.0
        return {name: 0.02 * math.exp(spread * dice.standard_normal()) * stall * (ratio if arm is C else 1.0)}

    return draw


def accepted(rate: float) -> Draw:
    """Requests whose own rates differ widely around the route's."""

    def draw(dice: np.random.Generator, arm: Arm) -> dict[str, Any]:
        drafts = int(dice.integers(1, 60))
        own = float(dice.beta(8 * rate, 8 * (1 - rate)))
        return {"num_drafts": drafts, "num_draft_tokens": 4 * drafts, "num_accepted_tokens": int(dice.binomial(4 * drafts, own))}

    return draw


# --- exact validity

ORDERS = ((B, C), (B, B, C, C), (C, C, B, B, C), (B, B, B, C, B, C))
Outcome = tuple[float, dict[str, Any]]  # probability, what was measured


def expectation(
    name: str, order: Sequence[Arm], outcomes: Mapping[Arm, Sequence[Outcome]], start: LiveState = START
) -> list[float]:
    """E[wealth above], E[wealth below] after one order of arms, over every sequence of outcomes."""
    total = [0.0, 0.0]
    for chosen in itertools.product(*(outcomes[arm] for arm in order)):
        state = fold(
            CONTEXT, start, [seen(at, arm, **found) for at, (arm, (_, found)) in enumerate(zip(order, chosen, strict=True))]
        )
        track = state.tracks[name]
        weight = math.prod(p for p, _ in chosen)
        total = [total[0] + weight * math.exp(track.log_above), total[1] + weight * math.exp(track.log_below)]
    return total


def coin(key: str, yes: Any, no: Any, p: float) -> list[Outcome]:
    return [(p, {key: yes}), (1 - p, {key: no})]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("baseline", [0.0, 0.1, 0.5, 0.99])
def test_rates_at_the_threshold_have_fair_bets(order: Sequence[Arm], baseline: float) -> None:
    margin, lost = CONTEXT.gates.error_margin, CONTEXT.live.success_margin
    sides = expectation(
        "errors",
        order,
        {
            B: coin("finish_reason", "error", "stop", baseline),
            C: coin("finish_reason", "error", "length", baseline + margin),
        },
    )
    assert max(sides) <= 1 + 1e-12
    found = (
        expectation(
            "task_success",
            order,
            {B: coin("task_success", True, False, 1 - baseline), C: coin("task_success", True, False, 1 - baseline - lost)},
            START,
        )
        if baseline < 0.98
        else [1.0, 1.0]
    )
    assert max(found) <= 1 + 1e-12
    worse = {B: coin("valid", False, True, baseline), C: coin("valid", False, True, min(1.0, baseline + 0.3))}
    if baseline < 0.7:
        assert expectation("structured_validity", order, worse)[0] > 1.001, "the planted excess must show"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["speed", "ttft"])
def test_equal_arms_have_fair_bets_however_skewed_their_times(order: Sequence[Arm], name: str) -> None:
    key = {"speed": "seconds_per_token", "ttft": "ttft_seconds"}[name]
    times: list[Outcome] = [(0.6, {key: 0.02}), (0.3, {key: 0.03}), (0.1, {key: 5.0})]
    centred = fold(CONTEXT, START, [seen(n, B, **{key: 0.02}) for n in range(20)])
    sides = expectation(name, order, {B: times, C: times}, centred)
    # Equal arms lie on the boundary of "not faster"; "TTFT not over 1.1 times" holds well inside, so that only one side bets.
    assert sides[0 if name == "speed" else 1] <= 1 + 1e-12
    if name == "speed":
        assert sides[1] <= 1 + 1e-12


def test_acceptance_at_the_floor_has_fair_bets() -> None:
    outcomes: list[Outcome] = [
        (0.5, {"num_drafts": 1, "num_draft_tokens": 4, "num_accepted_tokens": 4}),
        (0.5, {"num_drafts": 1, "num_draft_tokens": 4, "num_accepted_tokens": 0}),
    ]
    assert max(expectation("acceptance", (C, C, C), {C: outcomes})) <= 1 + 1e-12
    long: list[Outcome] = [
        (22 / 86, {"num_drafts": 100, "num_draft_tokens": 400, "num_accepted_tokens": 400}),  # scaled: 64 above the floor
        (64 / 86, {"num_drafts": 32, "num_draft_tokens": 128, "num_accepted_tokens": 42}),  # 22 below it
    ]
    assert max(expectation("acceptance", (C, C), {C: long})) <= 1 + 1e-12
    assert (
        max(expectation("memory", (C, C), {C: [(0.1, {"memory_headroom": 1.0}), (0.9, {"memory_headroom": 0.0})]})) <= 1 + 1e-12
    )


# --- false alarms, also where both arms suffer together


def through_an_outage(seed: int, count: int, share: float) -> list[Observation]:
    """Both variants fail half of their requests for a while."""
    calm = list(traffic(seed, count, errors(0.002, 0.002), share))
    dice = np.random.default_rng(10_000 + seed)
    start = int(dice.integers(count // 4, count // 2))
    return [
        replace(o, finish_reason="error" if dice.random() < 0.5 else "stop") if start <= at < start + count // 10 else o
        for at, o in enumerate(calm)
    ]


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_an_outage_of_both_arms_kills_nobody(share: float) -> None:
    failed = 0
    for seed in range(15):
        state = fold(CONTEXT, START, through_an_outage(seed, 400, share))
        failed += state.tracks["errors"].peak_above >= log_budget(CONTEXT.safety_alpha)
    assert failed == 0


FAIR: dict[str, Draw] = {
    "errors": errors(0.02, 0.02),
    "structured_validity": likely("valid", 0.1, 0.1),
    "task_success": likely("task_success", 0.78, 0.80),
    "thumbs": likely("thumbs", 0.45, 0.50),
    "speed": seconds("seconds_per_token", 1.0),
    "ttft": seconds("ttft_seconds", 1.1),
    "acceptance": accepted(0.5),
}


@pytest.mark.parametrize("name", FAIR)
def test_traffic_at_the_threshold_is_decided_seldom(name: str) -> None:
    budget = log_budget(CONTEXT.alpha)
    crossed = 0
    for seed in range(20):
        track = fold(CONTEXT, START, traffic(seed, 300, FAIR[name])).tracks[name]
        crossed += (track.peak_above >= budget) + (track.peak_below >= budget)
    assert crossed <= 1


# --- power

# gate: traffic, verdict, most candidate requests at half of the traffic (median of five seeds)
POWER: dict[str, tuple[Draw, Verdict, int]] = {
    "errors": (errors(0.10, 0.0), Verdict.FAIL, 240),
    "structured_validity": (likely("valid", 0.4, 0.05), Verdict.FAIL, 60),
    "task_success": (likely("task_success", 0.6, 0.85), Verdict.FAIL, 160),
    "thumbs": (likely("thumbs", 0.4, 0.8), Verdict.FAIL, 90),
    "speed": (seconds("seconds_per_token", 1 / 1.3), Verdict.PASS, 170),
    "ttft": (seconds("ttft_seconds", 2.0), Verdict.FAIL, 90),
    "acceptance": (accepted(0.3), Verdict.FAIL, 120),
}


@pytest.mark.parametrize("name", POWER)
def test_a_named_fault_is_decided_within_its_budget(name: str) -> None:
    draw, verdict, most = POWER[name]
    found = [decided_at(name, traffic(seed, 700, draw), verdict) for seed in range(5)]
    assert None not in found, found
    assert float(np.median([n for n in found if n is not None])) <= most, found


def test_a_small_canary_sees_failing_errors_too() -> None:
    at = decided_at("errors", traffic(3, 4000, errors(0.3, 0.0), share=0.05), Verdict.FAIL)
    assert at is not None
    assert at <= 60


# --- folding


def mixed(seed: int, count: int) -> list[Observation]:
    draws = [errors(0.05, 0.03), seconds("seconds_per_token", 0.8), seconds("ttft_seconds", 1.0), accepted(0.6)]

    def draw(dice: np.random.Generator, arm: Arm) -> dict[str, Any]:
        found: dict[str, Any] = {"memory_headroom": float(dice.random())}
        for one in draws:
            found |= one(dice, arm)
        return found | likely("thumbs", 0.5, 0.6)(dice, arm) | likely("valid", 0.1, 0.1)(dice, arm)

    return list(traffic(seed, count, draw))


def test_any_split_gives_the_same_bits() -> None:
    observations = mixed(1, 160)
    whole = fold(CONTEXT, START, observations).to_json()
    for size in (1, 7, 50):
        state = START
        for at in range(0, len(observations), size):
            state = LiveState.from_json(json.loads(json.dumps(state.to_json())))
            state = fold(CONTEXT, state, observations[at : at + size])
        assert json.dumps(state.to_json()) == json.dumps(whole)
    with pytest.raises(ConflictError, match="version"):
        LiveState.from_json({**whole, "version": 7})


def test_the_state_does_not_grow() -> None:
    short, long = (len(json.dumps(fold(CONTEXT, START, mixed(2, n)).to_json())) for n in (200, 600))
    assert long < 1.1 * short


def test_what_is_about_something_else_is_left_out() -> None:
    odd = [
        replace(seen(0, C, finish_reason="error"), observed_at=SINCE - 1),
        seen(1, C, finish_reason="error", stage="canary-50"),
        seen(2, C, finish_reason="error", engine="another"),
        seen(3, C, num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0),
    ]
    state = fold(CONTEXT, START, odd)
    assert state.tracks == {}
    assert state.left_out == {"early": 1, "other_stage": 1, "other_engine": 1, "without_drafts": 1}
    kept = fold(
        CONTEXT,
        START,
        [seen(0, C, finish_reason="stop", engine="e", stage="canary-5"), seen(1, B, finish_reason="stop", engine="x")],
    )
    assert kept.tracks["errors"].n == 1


def test_a_stage_starts_empty_but_for_the_safety_bets() -> None:
    before = fold(CONTEXT, START, mixed(4, 120))
    after = before.enter("canary-10", 5_000.0, carry=False)
    assert set(after.tracks) == {"errors", "structured_validity"}
    assert after.tracks["errors"] == before.tracks["errors"]
    assert (after.seen, after.blocks, after.counts, after.since) == ({}, {}, {}, 5_000.0)
    carried = before.enter("canary-10", 5_000.0, carry=True)
    assert (carried.tracks, carried.seen) == (before.tracks, before.seen)


# --- verdicts


def test_nothing_passes_for_want_of_data() -> None:
    for name in WORDING:
        found = gate(name, [])
        assert (found.verdict, found.reason, found.source) == (Verdict.NO_DATA, "no_data", Source.LIVE)
    half = gate("errors", [seen(n, C, finish_reason="stop") for n in range(100)])
    assert (half.verdict, half.reason) == (Verdict.NO_DATA, "no_data")
    assert "baseline" in half.sentence


def test_errors_pass_once_there_are_enough_and_grow_old() -> None:
    few = list(traffic(1, 60, errors(0.0, 0.0)))
    found = gate("errors", few)
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "too_few")
    assert found.needed
    enough = fold(CONTEXT, START, traffic(1, 200, errors(0.0, 0.0)))
    (fresh,) = judge(CONTEXT, enough, ["errors"], SINCE + 200, 3600.0)
    assert (fresh.verdict, fresh.reason, fresh.needed) == (Verdict.PASS, "no_excess", 0)
    assert fresh.low is not None
    assert fresh.high is not None
    assert fresh.low <= 0 <= fresh.high
    (old,) = judge(CONTEXT, enough, ["errors"], SINCE + 200 + 3601, 3600.0)
    assert (old.verdict, old.reason) == (Verdict.NO_DATA, "stale")


def test_a_proof_of_failure_does_not_grow_old() -> None:
    state = fold(CONTEXT, START, traffic(1, 300, errors(0.5, 0.0)))
    (found,) = judge(CONTEXT, state, ["errors"], SINCE + 1e6, 3600.0)
    assert (found.verdict, found.reason) == (Verdict.FAIL, "candidate_fails")


def test_a_possible_excess_does_not_pass() -> None:
    one = [seen(n, C if n % 2 else B, finish_reason="error" if n in (1, 3, 5) else "stop") for n in range(120)]
    found = gate("errors", one)
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "excess_possible")
    assert found.details["candidate_rate"] == pytest.approx(3 / 60)
    assert found.details["length_excess"]


def test_values_are_in_their_own_units() -> None:
    speed = gate("speed", traffic(5, 400, seconds("seconds_per_token", 0.5)))
    assert speed.verdict is Verdict.PASS
    assert speed.value == pytest.approx(2.0, rel=0.1)
    assert speed.low
    assert speed.high
    assert speed.low < 2.0 < speed.high
    assert speed.threshold == 1.0
    ttft = gate("ttft", traffic(6, 400, seconds("ttft_seconds", 2.0)))
    assert ttft.verdict is Verdict.FAIL
    assert ttft.value == pytest.approx(2.0, rel=0.1)
    assert ttft.threshold == pytest.approx(Gates().ttft_ratio)
    rate = gate("acceptance", traffic(7, 300, accepted(0.8)))
    assert rate.verdict is Verdict.PASS
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low < 0.8 < rate.high
    assert rate.details["mean_accepted_tokens"]
    free = gate("memory", [seen(n, C, memory_headroom=0.4) for n in range(80)])
    assert (free.verdict, free.value) == (Verdict.PASS, pytest.approx(0.4))


def test_a_wider_margin_lets_more_pass() -> None:
    draw = likely("task_success", 0.78, 0.85)
    assert gate("task_success", traffic(8, 1500, draw), with_live(success_margin=0.3)).verdict is Verdict.PASS
    assert gate("task_success", traffic(8, 1500, draw)).verdict is not Verdict.PASS


def test_every_gate_has_its_words() -> None:
    assert set(WORDING) == {*COMPARED, "acceptance", "memory"} - {"length"}
