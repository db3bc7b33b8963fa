"""The cost model: closed forms, monotony, agreement with simulated rounds, and the cells of a measured table."""

from __future__ import annotations

import numpy as np
import pytest

from canary.stats import cost
from canary.stats.cost import Costs, Curve
from canary.stats.rounds import Track, walk

FLAT = Curve({(0, 1, 1): 0.02, (0, 1, 17): 0.02})
# Milliseconds of one step at batch 1 by width, and (tokens per forward, measured speed-up with prefill) at k = 4 and 8 of the
# loop with the transformers forward, SmolLM2-135M in bf16, on categories of short prompts, where the prefill is small.
WIDTHS = {1: 25.8, 2: 26.3, 3: 26.9, 5: 27.8, 9: 31.5}
CELLS = {
    ("qa", 4): (1.22, 1.14),
    ("writing", 4): (1.14, 1.01),
    ("coding", 4): (1.20, 1.08),
    ("math", 4): (1.64, 1.51),
    ("qa", 8): (1.24, 1.07),
    ("writing", 8): (1.14, 0.93),
    ("coding", 8): (1.23, 1.04),
    ("math", 8): (1.75, 1.38),
}


def rates(seed: int, n: int = 60) -> list[float]:
    return np.random.default_rng(seed).uniform(0.2, 1.0, n).tolist()


@pytest.mark.parametrize("a", [0.0, 0.3, 0.8, 0.99])
@pytest.mark.parametrize("k", [1, 4, 16])
def test_one_rate_gives_leviathans_formulas(a: float, k: int) -> None:
    closed = (1 - a ** (k + 1)) / (1 - a)
    assert cost.expected_tokens([a] * k) == pytest.approx(closed)
    assert cost.step_speedup([a] * k, 1.0, 0.05 * k) == pytest.approx((1 - a ** (k + 1)) / ((1 - a) * (0.05 * k + 1)))


def test_full_acceptance_emits_every_draft_and_one() -> None:
    assert cost.expected_tokens([1.0] * 7) == 8
    assert cost.expected_tokens([1.0] * 7, room=3) == 3
    assert cost.expected_tokens([0.5] * 7, room=1) == 1


@pytest.mark.parametrize("bad", [[1.2], [-0.1], [float("nan")]])
def test_a_rate_outside_its_range_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="acceptance rates"):
        cost.expected_tokens(bad)


def test_tokens_rise_with_k_and_with_acceptance() -> None:
    by_k = [cost.expected_tokens([0.7] * k) for k in range(17)]
    by_rate = [cost.expected_tokens([a] * 4) for a in np.linspace(0, 1, 11)]
    assert by_k == sorted(by_k)
    assert by_rate == sorted(by_rate)


@pytest.mark.parametrize("cell", CELLS)
def test_the_formula_explains_the_measured_cells(cell: tuple[str, int]) -> None:
    tokens, measured = CELLS[cell]
    predicted = tokens * WIDTHS[1] / WIDTHS[cell[1] + 1]
    assert 0.93 <= measured / predicted <= 1.08


def test_a_walk_with_one_rate_tends_to_the_closed_form() -> None:
    walked = walk(Track.of_rates([0.6] * 3000, 4), 4)
    assert walked.tokens / walked.rounds == pytest.approx(cost.expected_tokens([0.6] * 4), rel=2e-3)
    assert walked.accepted_at[1] / walked.accepted_at[0] == pytest.approx(0.6, rel=2e-3)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_walk_agrees_with_simulated_rounds(k: int) -> None:
    given, rng = rates(3), np.random.default_rng(11)
    counts, firsts = [], []
    for _ in range(4000):
        at = rounds = first = 0
        while at < len(given):
            room, accepted = min(k, len(given) - at - 1), 0
            while accepted < room and rng.random() < given[at + accepted]:
                accepted += 1
            first += accepted > 0
            rounds, at = rounds + 1, at + accepted + 1
        counts.append(rounds)
        firsts.append(first)
    walked = walk(Track.of_rates(given, 16), k)
    error = 5 * np.std(counts) / np.sqrt(len(counts))
    assert walked.rounds == pytest.approx(np.mean(counts), abs=error)
    assert walked.accepted_at[0] == pytest.approx(np.mean(firsts), abs=error + 0.2)


def test_a_deterministic_walk_is_the_replay() -> None:
    # Three drafts hold at the start; then, from the fifth token on, one; the last token is never drafted.
    track = Track.of_matches([3, 2, 1, 0, 1, 0, 0], [True] * 6 + [False], 16)
    walked = walk(track, 4)
    assert (walked.tokens, walked.rounds, walked.num_drafts) == (7, 3.0, 2.0)
    assert walked.accepted_at == (2.0, 1.0, 1.0, 0.0)
    assert walk(track, 0).rounds == 7


def test_position_acceptance_never_rises_and_k_0_is_the_baseline() -> None:
    tracks = [Track.of_rates(rates(s), 16) for s in range(4)]
    costs = Costs(FLAT, [0.1] * 4)
    for k in (2, 9, 16):
        shown = cost.predict(tracks, k, 1, costs).per_position
        assert list(shown) == sorted(shown, reverse=True)
    none = cost.predict(tracks, 0, 1, costs)
    assert (none.speedup, none.low, none.high, none.tokens_per_round) == (1.0, 1.0, 1.0, 1.0)


def test_free_verification_makes_speed_the_tokens_per_round() -> None:
    tracks = [Track.of_rates(rates(s), 16) for s in range(4)]
    found = cost.predict(tracks, 5, 1, Costs(FLAT, [0.0] * 4))
    assert found.speedup == pytest.approx(found.tokens_per_round)
    assert found.low < found.speedup < found.high
    slower = cost.predict(tracks, 5, 1, Costs(FLAT, [0.5] * 4))
    assert 1 < slower.speedup < slower.decode_speedup == pytest.approx(found.speedup)


def test_draft_time_and_wide_steps_are_paid_for() -> None:
    tracks = [Track.of_rates([0.5] * 40, 16) for _ in range(3)]
    steep = Curve({(0, 1, 1): 0.01, (0, 1, 17): 0.05})
    cheap = cost.predict(tracks, 4, 1, Costs(FLAT, [0.0] * 3)).speedup
    costly = cost.predict(tracks, 4, 1, Costs(FLAT, [0.0] * 3, draft=lambda _rows, k: 0.005 * k)).speedup
    wide = cost.predict(tracks, 4, 1, Costs(steep, [0.0] * 3)).speedup
    prefilled = cost.predict(tracks, 4, 1, Costs(FLAT, [0.0] * 3, draft_prefill=[1.0] * 3)).speedup
    assert cheap == pytest.approx(2 * costly, rel=0.02)  # the draft takes as long as the step
    assert wide == pytest.approx(cheap / 2, rel=0.02)
    assert prefilled < 1


def test_a_draft_that_copies_nothing_costs_nothing_where_nothing_is_drafted() -> None:
    steep = Curve({(0, 1, 1): 0.01, (0, 1, 17): 0.05})
    silent = [Track.of_matches([0] * 30, [False] * 30, 16)] * 2
    loud = [Track.of_matches([0] * 30, [True] * 30, 16)] * 2
    assert cost.predict(silent, 8, 1, Costs(steep, [0.0, 0.0])).speedup == 1
    assert cost.predict(loud, 8, 1, Costs(steep, [0.0, 0.0])).speedup < 0.5


def test_a_block_pays_by_the_rows_that_still_run() -> None:
    curve = Curve({(0, 1, 1): 1.0, (0, 2, 1): 3.0, (0, 1, 5): 1.0, (0, 2, 5): 3.0})
    tracks = [Track.of_matches([0] * n, [False] * n, 16) for n in (4, 10)]
    assert cost._decode_seconds(np.array([4.0, 10.0]), 0, 0.0, 2, Costs(curve, [0, 0])) == 4 * 3 + 6 * 1
    assert cost.predict(tracks, 4, 2, Costs(curve, [0.0, 0.0])).speedup == 1


def test_a_batch_whose_rows_seldom_draft_still_pays_for_the_one_that_does() -> None:
    curve = Curve({(0, b, w): 1.0 + 0.1 * (w - 1) for b in (1, 8) for w in (1, 9)})
    track = Track.of_matches([0] * 400, [i % 10 == 0 for i in range(400)], 16)
    alone = cost.predict([track] * 8, 8, 1, Costs(curve, [0.0] * 8)).speedup
    together = cost.predict([track] * 8, 8, 8, Costs(curve, [0.0] * 8)).speedup
    assert alone == pytest.approx(1 / 1.08, rel=1e-3)
    assert together == pytest.approx(1 / (1 + 0.8 * (1 - 0.9**8)), rel=1e-3)


def test_the_curve_is_linear_between_its_points_and_flat_beyond() -> None:
    curve = Curve({(c, b, w): c + b + w for c in (0, 100) for b in (1, 9) for w in (1, 5)})
    assert curve.at(5, 3, 50) == pytest.approx(58)
    assert curve.at(20, 99, 500) == curve.at(9, 5, 100) == 114


def test_the_best_k_needs_more_than_the_hysteresis() -> None:
    def at(k: int, speedup: float) -> list[cost.Prediction]:
        return [cost.Prediction(k, 1, 1.0, 0.5, (), speedup, speedup, speedup, speedup)]

    assert cost.best({1: at(1, 1.009), 2: at(2, 0.9)}) == 0
    assert cost.best({1: at(1, 1.2), 2: at(2, 1.205), 4: at(4, 1.25)}) == 4
    assert cost.best({1: at(1, 1.2), 2: at(2, 1.205)}) == 1
    assert cost.best({}) == 0
    assert cost.best({3: [*at(3, 2.0), *at(3, 0.8)], 1: [*at(1, 1.1), *at(1, 1.05)]}) == 1  # the worst concurrency decides


def test_a_baseline_far_from_its_memory_is_told_by_how_much() -> None:
    assert cost.memory_multiple(0.0258, 269e6, 38.9e9) == pytest.approx(3.73, abs=0.01)
    with pytest.raises(ValueError, match="positive"):
        cost.memory_multiple(0.0, 1.0, 1.0)


def test_missing_costs_are_refused() -> None:
    with pytest.raises(ValueError, match="prefill"):
        cost.predict([Track.of_rates([0.5], 4)], 2, 1, Costs(FLAT, []))
