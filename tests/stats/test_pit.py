"""PIT bets by exact integration over the randomisation: their integrands are polynomials, so Gauss nodes are exact."""

from __future__ import annotations

import numpy as np
import pytest

from canary.domain.pairs import DrafterKind
from canary.stats.bets import DEGREES, legendre
from canary.stats.certificates import log_pit_certificate, pit_directions
from canary.stats.pit import ORDERS, WIDTH, Pit, log_pit_bets
from tests.stats.enumerate_rows import EXACT, PACKED, draws
from tests.stats.world import context_of

NODES, WEIGHTS = np.polynomial.legendre.leggauss(5)  # exact to degree 9
V, V_WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2


def integral(p: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Mean over x ~ p and a uniform V of values [x, v, ...]."""
    return np.asarray(np.einsum("x,v,xv...->...", p, V_WEIGHTS, values))


@pytest.mark.parametrize(("packed", "tolerance"), [(False, EXACT), (True, PACKED)])
def test_every_pit_bet_has_mean_exactly_one(packed: bool, tolerance: float) -> None:
    for draw in draws(V, packed=packed):
        for order in ORDERS:
            means = integral(draw.p, np.exp(log_pit_bets(draw.pit[order])))
            np.testing.assert_allclose(means, 1.0, rtol=0, atol=tolerance, err_msg=f"{draw.label} {order}")


def test_a_pit_that_is_not_uniform_is_caught() -> None:
    draw = next(iter(draws(V)))
    biased = draw.pit["pit_id"] * 0.98
    assert np.abs(integral(draw.p, np.exp(log_pit_bets(biased))) - 1).max() > 1e-3


@pytest.mark.parametrize("margin", [0.005, 0.01, 0.02, 0.05])
@pytest.mark.parametrize("degree", DEGREES)
def test_a_pit_certificate_is_an_e_value_from_the_margin_on(margin: float, degree: int) -> None:
    grid = np.linspace(0, 1, 201)
    values = legendre(grid)[:, degree - 1]
    for sign in (1, -1):
        witness = sign * values
        top = int(witness.argmax())
        for shift in (2 * margin, 3 * margin, float(witness.max())):
            # Mass on the best point lifts the witness's mean to exactly `shift`.
            base = np.full(len(grid), 1 / len(grid))
            share = (shift - base @ witness) / (witness[top] - base @ witness)
            truth = (1 - share) * base
            truth[top] += share
            assert truth @ np.exp(log_pit_certificate(witness, margin, degree)) <= 1 + 1e-12


def test_a_pit_certificate_grows_under_equality() -> None:
    for draw in draws(V):
        for j in DEGREES:
            growth = integral(draw.p, log_pit_certificate(legendre(draw.pit["pit_id"])[..., j - 1], 0.01, j))
            assert growth == pytest.approx(2 * 0.01**2 * (2 * j + 1), rel=0.15)


def test_one_hot_drafts_keep_one_direction_of_the_ratio_order() -> None:
    assert len(pit_directions(DrafterKind.DENSE)) == 16
    one_hot = pit_directions(DrafterKind.ONE_HOT)
    assert [d for d in one_hot if d[0] == "pit_ratio"] == [("pit_ratio", 1, 1)]
    assert len(one_hot) == 9


def test_names_fit_the_sums() -> None:
    context, pit = context_of(DrafterKind.DENSE), Pit()
    names = pit.names(context)
    assert len(set(names)) == len(names) == len(ORDERS) * WIDTH
    assert names[0] == "pit_id@+0.02*L1"
    assert names[WIDTH - 1] == "pit_id@-0.5*L4"
    assert pit.log_e(context, np.zeros(len(names))) == {"pit_id": 0.0, "pit_ratio": 0.0}
    values = np.zeros(len(names))
    values[names.index("pit_ratio@+0.2*L3")] = 10.0
    assert pit.log_e(context, values)["pit_ratio"] == pytest.approx(np.log((WIDTH - 1 + np.exp(10)) / WIDTH))
