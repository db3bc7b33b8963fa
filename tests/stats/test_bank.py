"""Bank and PIT: every bet is a bet, by enumeration; a planted one that is not is caught; layout and standing of the bank."""

from __future__ import annotations

import numpy as np
import pytest

from canary.domain.pairs import ALTERNATIVES, DrafterKind
from canary.stats.bank import BURST_LAMBDAS, BURST_SHARES, SINGLES, STANDING, Bank, Standing, is_active, log_burst
from canary.stats.bets import LAMBDAS, legendre, log_bets, log_inverse_bets, log_weighted_sum
from tests.stats.enumerate_rows import EXACT, PACKED, check_bet, draws, mean
from tests.stats.world import context_of

NONE = np.array([0.5])


@pytest.mark.parametrize(("packed", "tolerance"), [(False, EXACT), (True, PACKED)])
def test_every_bank_bet_has_mean_at_most_one(packed: bool, tolerance: float) -> None:
    for draw in draws(NONE, packed=packed):
        for ratio in draw.log_ratio.values():
            bets = np.exp(log_bets(ratio))
            for at in range(len(LAMBDAS)):
                check_bet(draw.p, bets[:, at], tolerance)


def test_the_unigram_bet_has_mean_at_most_one() -> None:
    rng = np.random.default_rng(1)
    for draw in draws(NONE):
        a = rng.dirichlet(np.ones(len(draw.p)))
        with np.errstate(divide="ignore"):
            ratio = np.log(a) - np.log(draw.p)
        for at in range(len(LAMBDAS)):
            check_bet(draw.p, np.exp(log_bets(ratio))[:, at])


@pytest.mark.parametrize(("packed", "tolerance"), [(False, EXACT), (True, 2 * PACKED)])  # a product of two tokens
def test_every_whole_request_bet_has_mean_at_most_one(packed: bool, tolerance: float) -> None:
    pool = list(draws(NONE, packed=packed))
    first, second = pool[3], pool[30]
    for k in ("draft", "shift"):
        for lam in BURST_LAMBDAS:
            one, two = (log_bets(d.log_ratio[k], (lam,))[:, 0] for d in (first, second))
            bets = np.exp(log_burst(one[:, None] + two[None, :]))  # [x1, x2, shares]
            joint = first.p[:, None] * second.p[None, :]
            for at in range(len(BURST_SHARES)):
                check_bet(joint.ravel(), bets[..., at].ravel(), tolerance)


@pytest.mark.parametrize(("packed", "tolerance", "mass"), [(False, EXACT, 1 + 1e-9), (True, PACKED, 1 + 1e-5)])
def test_a_planted_invalid_bet_is_caught(packed: bool, tolerance: float, mass: float) -> None:
    draw = next(iter(draws(NONE, packed=packed)))
    heavy = draw.log_ratio["draft"] + np.log(mass)  # an alternative of more than all mass
    with pytest.raises(AssertionError):
        check_bet(draw.p, np.exp(log_bets(heavy))[:, -1], tolerance)


def test_packing_rounds_the_scalars() -> None:
    """Otherwise the packed path would be the exact one under another name."""
    exact, stored = (next(iter(draws(NONE, packed=packed))).log_ratio["hot"] for packed in (False, True))
    assert 0 < np.abs(exact - stored).max() < PACKED


def test_bets_have_power_against_their_own_alternative() -> None:
    draw = next(d for d in draws(NONE) if d.label == "random1 against dense random0")
    for k in ("draft", "residual", "hot", "cold", "argmax", "shift"):
        a = draw.p * np.exp(draw.log_ratio[k])
        assert mean(a, log_bets(draw.log_ratio[k])[:, -1]) > 0


def test_clipped_ratios_are_rounded_to_the_safe_side() -> None:
    bets = log_bets(np.array([100.0, -np.inf]), (0.5,))[:, 0]
    assert bets == pytest.approx([np.log1p(0.5 * (1e9 - 1)), np.log(0.5)])
    clipped = np.float64(np.float32(np.log(1e9)))  # as the trace stores it
    assert log_inverse_bets(np.array([clipped]), 0.5)[0] < -70
    assert log_inverse_bets(np.array([2.0]), 0.5)[0] == -log_bets(np.array([2.0]), (0.5,))[0, 0]


def test_legendre_is_orthogonal_on_the_unit_interval() -> None:
    nodes, weights = np.polynomial.legendre.leggauss(9)
    values = legendre((nodes + 1) / 2)
    gram = (values * weights[:, None]).T @ values / 2
    np.testing.assert_allclose(gram, np.diag([1 / 3, 1 / 5, 1 / 7, 1 / 9]), atol=1e-14)


def test_every_test_has_a_standing_for_every_drafter_kind() -> None:
    assert set(STANDING) >= {*ALTERNATIVES, *SINGLES, "pit_id", "pit_ratio"}
    assert all(set(row) == set(DrafterKind) for row in STANDING.values())
    assert STANDING["shared_noise"][DrafterKind.ONE_HOT] is Standing.INERT
    assert not is_active("pit_ratio_all_directions", DrafterKind.ONE_HOT)


@pytest.mark.parametrize("kind", list(DrafterKind))
def test_names_are_unique_and_zero_wealth_is_an_e_value_of_one(kind: DrafterKind) -> None:
    context, bank = context_of(kind), Bank()
    names = bank.names(context)
    assert len(set(names)) == len(names)
    assert any(name.startswith("shared_noise@") for name in names) is (kind is DrafterKind.DENSE)
    assert bank.log_e(context, np.zeros(len(names))) == {"bank": 0.0}


def test_the_bank_is_the_mean_over_alternatives_of_the_mean_over_strengths() -> None:
    context, bank = context_of(DrafterKind.DENSE), Bank()
    names = bank.names(context)
    values = np.random.default_rng(3).normal(size=len(names))
    sums = dict(zip(names, np.exp(values), strict=True))
    singles = [np.mean([sums[f"{k}@{lam:g}"] for lam in LAMBDAS]) for k in SINGLES]
    bursts = [
        np.mean([sums[f"{k}_burst@{lam:g}/{pi:g}"] for lam in BURST_LAMBDAS for pi in BURST_SHARES])
        for k in ("draft", "unigram", "shift")
    ]
    assert bank.log_e(context, values)["bank"] == pytest.approx(np.log(np.mean(singles + bursts)), abs=1e-12)


def test_huge_wealth_does_not_overflow() -> None:
    assert log_weighted_sum([(0.5, 5000.0), (0.1, -3.0)]) == pytest.approx(5000 + np.log(0.5))
    assert np.isfinite(log_burst(np.array([5000.0, -5000.0]))).all()
