"""Sums by group are what a loop would give, and the same bits whichever groups lie beside them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from canary.stats.bets import (
    BEYOND,
    LAMBDAS,
    MAX_LOG_RATIO,
    excess_of,
    legendre,
    log_bets,
    log_inverse_bets,
    sum_log_bets,
    sum_log_inverse_bets,
)
from canary.stats.pit import log_pit_bets, sum_log_pit_bets
from canary.stats.ragged import LONGEST, Ragged, block_length, joined


def exact(logs: np.ndarray) -> np.ndarray:
    """Sums over the first axis without rounding."""
    flat = logs.reshape(len(logs), math.prod(logs.shape[1:]))
    return np.array([math.fsum(flat[:, at]) for at in range(flat.shape[1])]).reshape(logs.shape[1:])


def one_more(q: np.ndarray) -> np.ndarray:
    return 1.0 + q


@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 31, 32, 33, 96, 257, 9000])
def test_blocks_of_any_number_of_tokens(tokens: int) -> None:
    factors = np.exp(np.random.default_rng(tokens).uniform(-2, 2, (tokens, 3, 2)))
    (found,) = Ragged([tokens]).sum_log(one_more, factors - 1.0, 2.0)
    assert np.abs(found - exact(np.log(factors))).max() < 1e-12 * max(1, tokens / 100)


def test_a_block_never_leaves_the_range_of_a_double() -> None:
    assert block_length(0.1) == LONGEST
    assert block_length(BEYOND) == 8
    assert block_length(1e9) == 1
    for most in (0.7, MAX_LOG_RATIO, BEYOND):
        for sign in (1, -1):
            found = Ragged([100]).sum_log(np.exp, np.full((100, 1), sign * most), most)
            assert found == pytest.approx(100 * sign * most, rel=1e-13)


LENGTHS = (96, 0, 1, 33, 64, 200, 31, 0, 32, 5)


@pytest.mark.parametrize("seed", range(4))
def test_a_group_does_not_feel_its_neighbours(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.permutation(LENGTHS)
    values = rng.uniform(-0.9, 3.0, (int(lengths.sum()), 7))
    together, ends = Ragged(lengths), np.cumsum(lengths)
    sums, logs, flags = together.sum(values), together.sum_log(one_more, values, 3.0), together.any(values[:, 0] > 2.9)
    for at, (low, high) in enumerate(zip(ends - lengths, ends, strict=True)):
        own, alone = values[low:high], Ragged([high - low])
        assert (sums[at] == alone.sum(own)[0]).all()
        assert (logs[at] == alone.sum_log(one_more, own, 3.0)[0]).all()
        assert sums[at] == pytest.approx(own.sum(axis=0))
        assert flags[at] == (own[:, 0] > 2.9).any()
    assert (joined(together, together).sum(np.concatenate([values, values])) == np.concatenate([sums, sums])).all()


def test_selected_entries_keep_their_groups() -> None:
    groups, where = Ragged([3, 0, 2, 4]), np.array([1, 0, 1, 0, 0, 1, 1, 1, 0], dtype=bool)
    places, chosen = groups.select(where)
    assert places.tolist() == [0, 2, 5, 6, 7]
    assert chosen.lengths.tolist() == [2, 0, 0, 3]
    assert chosen.offset.tolist() == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("scale", [1e-9, 0.1, 3.0, 30.0])
def test_bank_bets_and_certificates_keep_their_meaning(scale: float) -> None:
    rng, tokens = np.random.default_rng(1), Ragged([200])
    ratios = rng.normal(0, scale, (200, 5))
    ratios[::17, 2], ratios[::19, 3] = -np.inf, 1e3  # never in the alternative; clipped
    excess = excess_of(ratios)
    assert np.abs(sum_log_bets(tokens, excess)[0] - exact(log_bets(ratios))).max() < 1e-12 * max(1.0, 200 * scale)
    for lam in (0.003, LAMBDAS[-1], 0.95):
        one_by_one = exact(log_inverse_bets(ratios, lam))
        assert sum_log_inverse_bets(tokens, ratios, excess, [lam] * 5)[0] == pytest.approx(one_by_one, rel=1e-13, abs=1e-12)


def test_pit_bets_keep_their_meaning() -> None:
    u = np.concatenate([np.random.default_rng(2).random((150, 2)), np.zeros((40, 2)), np.ones((40, 2))])
    assert np.abs(sum_log_pit_bets(Ragged([230]), legendre(u))[0] - exact(log_pit_bets(u))).max() < 1e-12
