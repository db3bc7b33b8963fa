"""Acceptance: ratio of sums against a floor, by requests; budgets of the specification's table within a factor of two."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from canary.domain.evidence import GateRole, Verdict
from canary.domain.pairs import Pair
from canary.domain.policy import Gates
from canary.stats.acceptance import Acceptance
from canary.stats.bounded import log_budget
from tests.stats.make import context, expectation, fold, gate, generation, pair

FLOOR = Gates(acceptance_floor=0.65)


def counted(drafted: int, accepted: int) -> Pair:
    """A request with these totals, in drafts of four that are all or nothing but one."""
    full, rest = divmod(accepted, 4)
    steps = [(4, 4)] * full + ([(4, rest)] if rest else [])
    steps += [(4, 0)] * ((drafted - 4 * len(steps)) // 4)
    left = drafted - 4 * len(steps)
    return pair(candidate=generation(steps=steps + ([(left, 0)] if left > 0 else [])))


def requests(rng: np.random.Generator, rate: float, size: int) -> NDArray[np.int64]:
    """(drafted, accepted) of requests whose own rates vary widely around `rate`, whatever their lengths, [size, 2]."""
    own = rng.beta(8 * rate, 8 * (1 - rate), size=size)  # about the variance of the specification's world
    drafted = rng.integers(60, 129, size=size)
    return np.stack([drafted, rng.binomial(drafted, own)], axis=1)


def walk(drawn: NDArray[np.int64], gates: Gates = FLOOR) -> Iterator[dict[str, float]]:
    """The e-processes after every request."""
    part, where = Acceptance(), context(gates)
    values = np.zeros(len(part.names(where)))
    for drafted, accepted in drawn.tolist():
        values = values + part.increments(where, counted(drafted, accepted))
        yield part.log_e(where, values)


def test_no_side_gains_at_the_floor() -> None:
    where = context(Gates(acceptance_floor=0.25))
    for outcomes in (
        [(0.75, counted(128, 0)), (0.25, counted(128, 128))],
        [(0.75, counted(400, 0)), (0.25, counted(400, 400))],
        [(0.5, counted(8, 4)), (0.5, counted(8, 0))],
        [(0.5, counted(8, 2)), (0.25, counted(12, 0)), (0.25, counted(12, 6))],
    ):
        for length in (1, 2, 5):
            assert expectation(Acceptance(), where, "acceptance.above", outcomes, length) <= 1 + 1e-12
            assert expectation(Acceptance(), where, "acceptance.below", outcomes, length) <= 1 + 1e-12
    better = [(0.5, counted(128, 0)), (0.5, counted(128, 128))]
    assert expectation(Acceptance(), where, "acceptance.above", better, 3) > 1.1


def test_declares_seventy_above_sixty_five_within_twice_the_tabled_requests() -> None:
    needed = []
    for seed in range(25):
        drawn = requests(np.random.default_rng(seed), 0.70, 600)
        crossing = (n for n, e in enumerate(walk(drawn), 1) if e["acceptance.above"] >= log_budget(0.01))
        needed.append(next(crossing, 9999))
    assert np.median(needed) <= 2 * 290


@pytest.mark.parametrize("side", ["above", "below"])
def test_false_declarations_at_the_floor_stay_in_their_budget(side: str) -> None:
    """60 runs of 300 requests exactly at the floor: at most 1 % each way."""
    false = 0
    for seed in range(60):
        drawn = requests(np.random.default_rng(1000 + seed), 0.65, 300)
        false += any(e[f"acceptance.{side}"] >= log_budget(0.01) for e in walk(drawn))
    assert false <= 2


@pytest.mark.prove
def test_false_declarations_at_full_size() -> None:
    """300 runs of 800 requests, either side."""
    false = {"above": 0, "below": 0}
    for seed in range(300):
        looks = list(walk(requests(np.random.default_rng(5000 + seed), 0.65, 800)))
        for side in false:
            false[side] += max(e[f"acceptance.{side}"] for e in looks) >= log_budget(0.01)
    assert max(false.values()) <= 3 + 3 * np.sqrt(3)


def test_the_interval_covers_at_every_look() -> None:
    missed = 0
    for seed in range(40):
        drawn = requests(np.random.default_rng(2000 + seed), 0.4, 200)
        outside = False
        for n in (10, 50, 100, 200):
            found = gate(Acceptance(), context(FLOOR), [counted(d, a) for d, a in drawn[:n].tolist()])
            assert found.low is not None
            assert found.high is not None
            outside |= not min(found.low, 0.65) <= 0.4 <= found.high
        missed += outside
    assert missed <= 3


def test_a_good_route_passes_and_says_so() -> None:
    drawn = requests(np.random.default_rng(1), 0.4, 60)
    found = gate(Acceptance(), context(Gates(acceptance_floor=0.1)), [counted(d, a) for d, a in drawn.tolist()])
    assert (found.verdict, found.reason, found.role) == (Verdict.PASS, "above_floor", GateRole.ECONOMY)
    drafted, accepted = drawn.sum(axis=0).tolist()
    assert found.value == pytest.approx(accepted / drafted)
    assert found.low is not None
    assert 0.1 <= found.low < 0.4
    assert (found.n, found.needed, found.progress) == (60, 0, 1.0)
    assert "over 60 requests, proven to be above the floor of 0.1" in found.sentence


def test_a_poor_route_fails() -> None:
    drawn = requests(np.random.default_rng(2), 0.3, 120)
    found = gate(Acceptance(), context(FLOOR), [counted(d, a) for d, a in drawn.tolist()])
    assert (found.verdict, found.reason) == (Verdict.FAIL, "below_floor")
    assert found.high is not None
    assert 0.3 < found.high <= 0.65


def test_in_between_it_says_how_many_more() -> None:
    found = gate(Acceptance(), context(FLOOR), [counted(100, 75)] * 30)
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "not_yet")
    assert found.needed is not None
    assert gate(Acceptance(), context(FLOOR), [counted(100, 75)] * (30 + found.needed)).verdict is Verdict.PASS
    assert gate(Acceptance(), context(FLOOR), [counted(100, 60)] * 3).needed is None


def test_a_route_that_turned_bad_is_judged_by_the_side_that_leads() -> None:
    found = gate(Acceptance(), context(FLOOR), [counted(128, 128)] * 40 + [counted(128, 0)] * 120)
    assert found.verdict is Verdict.FAIL
    found = gate(Acceptance(), context(FLOOR), [counted(128, 0)] * 40 + [counted(128, 128)] * 200)
    assert found.verdict is Verdict.PASS


def test_details_hold_counts_and_positions() -> None:
    one = pair(candidate=generation(steps=[(0, 0), (4, 3), (4, 0), (2, 2)]))
    none = pair(candidate=generation(steps=[(0, 0), (0, 0)]))
    found = gate(Acceptance(), context(Gates()), [one, none])
    assert found.value == 0.5
    assert found.details["mean_accepted_tokens"] == pytest.approx(5 / 3)
    assert found.details["num_drafts"] == 3
    assert found.details["acceptance_per_position"] == pytest.approx([2 / 3, 2 / 3, 1 / 3, 0])
    assert (found.n, found.details["requests_without_drafts"], found.details["num_steps"]) == (1, 1, 6)


def test_a_drafter_that_never_drafts_is_no_data() -> None:
    silent = gate(Acceptance(), context(Gates()), [pair(candidate=generation(steps=[(0, 0)] * 9))] * 50)
    assert (silent.verdict, silent.reason) == (Verdict.NO_DATA, "no_drafts")
    failed = gate(Acceptance(), context(Gates()), [pair(candidate=generation(error="boom", steps=[(4, 4)]))] * 50)
    assert (failed.verdict, failed.reason) == (Verdict.NO_DATA, "no_data")


def test_a_long_answer_weighs_no_more_than_the_cap() -> None:
    sums = fold(Acceptance(), context(Gates()), [counted(1280, 640)])
    assert (sums["a"], sums["d"], sums["drafted"]) == (64, 128, 1280)


def drafting(rng: np.random.Generator, rate: float, drafts: int) -> Pair:
    """A request of so many drafts of four, in which each next token is accepted with one chance."""
    stretches = np.minimum(rng.geometric(1 - rate, size=drafts) - 1, 4)
    return pair(candidate=generation(steps=[(4, int(a)) for a in stretches]))


def test_positions_and_mean_accepted_tokens_have_intervals_that_cover() -> None:
    rate, missed = 0.6, 0
    truth = [rate ** (i + 1) for i in range(4)]
    for seed in range(20):
        rng = np.random.default_rng(40 + seed)
        details = gate(Acceptance(), context(FLOOR), [drafting(rng, rate, 12) for _ in range(150)]).details
        bounds = details["acceptance_per_position_interval"]
        low, high = details["mean_accepted_tokens_interval"]  # type: ignore[misc]
        assert 0 < low < details["mean_accepted_tokens"] < high < 4  # type: ignore[operator]
        missed += not low <= sum(truth) <= high
        missed += sum(not low <= true <= high for (low, high), true in zip(bounds, truth, strict=True))  # type: ignore[call-overload]
    assert missed <= 3


def test_many_drafts_weigh_no_more_than_the_cap_in_the_intervals() -> None:
    sums = fold(Acceptance(), context(Gates()), [pair(candidate=generation(steps=[(4, 4)] * 256))])
    assert (sums["drafts"], sums["rounds.d"], sums["rounds.a"], sums["position.3.a"]) == (256, 128, 128, 128)


def test_without_a_drafter_there_is_nothing_to_say() -> None:
    found = gate(Acceptance(), context(Gates(), k=0), [pair(candidate=generation(steps=[(0, 0)] * 9, k=0))] * 3)
    assert (found.verdict, found.reason) == (Verdict.NO_DATA, "no_drafts")
