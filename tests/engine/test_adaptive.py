"""Adaptive k: what it chooses from a known curve, what it learns, and that it learns from a request's own rounds alone."""

from __future__ import annotations

import pytest
import torch

from canary.engine.adaptive import LEAST, MOST, PRIORS, AdaptiveK, CostTable
from canary.engine.drafters.base import Proposal

FLAT = CostTable({(n, w): 10.0 + 0.1 * w for n in (1, 8) for w in (1, 2, 3, 5, 9)})
STEEP = CostTable({(n, w): 10.0 * w for n in (1, 8) for w in (1, 2, 3, 5, 9)})


def chooser(costs: CostTable, rows: int = 1, k: int = 4) -> AdaptiveK:
    made = AdaptiveK(costs, k, rows)
    for row in range(rows):
        made.begin(row)
    return made


def proposal(lengths: tuple[int, ...], grades: tuple[int, ...]) -> Proposal:
    tokens = torch.arange(max(lengths)).expand(len(lengths), -1)
    return Proposal(tokens, lengths, grades=grades)


def width(cut: Proposal | None) -> int:
    return 0 if cut is None else cut.tokens.shape[1]


def test_a_flat_curve_drafts_everything_and_a_steep_one_nothing() -> None:
    assert width(chooser(FLAT).cut(proposal((4,), (3,)))) == 4
    assert width(chooser(STEEP).cut(proposal((4,), (3,)))) == 0


def test_a_cut_keeps_no_more_than_was_proposed() -> None:
    cut = chooser(FLAT, 2).cut(proposal((3, 1), (3, 3)))
    assert cut is not None
    assert cut.lengths == (3, 1)
    assert cut.tokens.shape == (2, 3)


def test_the_choice_is_the_best_of_all_choices() -> None:
    """Against a plain search over the formula, on curves and estimates of every kind."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        steps = torch.rand(5, generator=generator).cumsum(0) * 4 + 10
        costs = CostTable({(1, w): float(c) for w, c in zip((1, 2, 3, 5, 9), steps, strict=True)})
        made = AdaptiveK(costs, 8, 1)
        made.begin(0)
        accepted = PRIORS[3]

        def rate(k: int, costs: CostTable = costs, accepted: float = accepted) -> float:
            return sum(accepted**i for i in range(k + 1)) / costs.step(1, k)

        best = max((0, 1, 2, 4, 8), key=rate)
        expected = best if rate(best) > 1.01 * rate(0) else 0
        assert width(made.cut(proposal((8,), (3,)))) == expected


def test_the_way_back_from_zero_needs_no_trial() -> None:
    """A draft that was too dear to judge is still compared with the token that came."""
    costs = CostTable({(1, w): 10.0 + 2.0 * (w - 1) for w in (1, 2, 3, 5)})
    made = chooser(costs)
    assert width(made.cut(proposal((4,), (1,)))) == 0
    for _ in range(30):
        if made.cut(proposal((4,), (1,))) is not None:
            break
        made.observe(0, [0], 0, 0)  # token 0 is what the draft said
    assert width(made.cut(proposal((4,), (1,)))) > 0
    for _ in range(60):
        cut = made.cut(proposal((4,), (1,)))
        made.observe(0, [9], width(cut), 0)
    assert width(made.cut(proposal((4,), (1,)))) == 0


def test_estimates_stay_inside_their_bounds() -> None:
    made = chooser(FLAT)
    for _ in range(500):
        made.cut(proposal((4,), (3,)))
        made.observe(0, [0, 1, 2, 3, 7], 4, 4)
    assert made._row(0).accepted[3] == MOST
    for _ in range(500):
        made.cut(proposal((4,), (3,)))
        made.observe(0, [9], 4, 0)
    assert made._row(0).accepted[3] == LEAST


def test_a_drafter_that_costs_is_asked_less_and_comes_back() -> None:
    costs = CostTable(FLAT.target, {(n, k): 1.0 * k for n in (1, 8) for k in (1, 2, 4)})
    made = chooser(costs)
    assert made.limits((4,)) == (2,)
    tried = []
    for _ in range(400):
        (limit,) = made.limits((4,))
        tried.append(limit)
        made.observe(0, [9], limit, 0)
    assert 0 < sum(limit > 0 for limit in tried[100:]) < 15, "now and then, or it would never notice that text has changed"
    for _ in range(400):
        (limit,) = made.limits((4,))
        made.observe(0, [0] * (limit + 1), limit, limit)
    assert made.limits((4,)) == (4,)


def test_one_request_never_moves_anothers_estimate() -> None:
    made = chooser(FLAT, 2)
    before = list(made._row(1).accepted)
    for _ in range(20):
        made.cut(proposal((4, 4), (3, 3)))
        made.observe(0, [9], 4, 0)
    assert made._row(1).accepted == before
    moved = made._row(0)
    made.end(1)
    made.move(0, 1)
    assert made._row(1) is moved
    made.begin(0)
    assert made._row(0).accepted == list(PRIORS)


@pytest.mark.parametrize(
    ("batch", "k", "expected"), [(1, 0, 10.0), (4, 0, 40.0), (8, 0, 80.0), (16, 0, 160.0), (1, 2, 30.0), (8, 3, 320.0)]
)
def test_the_table_is_read_between_its_points(batch: int, k: int, expected: float) -> None:
    costs = CostTable({(n, w): 10.0 * n * w for n in (1, 8) for w in (1, 2, 3, 5)})
    assert costs.step(batch, k) == pytest.approx(expected)
