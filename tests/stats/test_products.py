"""Logs of products of blocks are the sums of logs, also where every factor is as large or as small as it may be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from canary.stats.bets import (
    BEYOND,
    LAMBDAS,
    MAX_LOG_RATIO,
    column,
    log_bets,
    log_inverse_bets,
    sum_log_bets,
    sum_log_inverse_bets,
)
from canary.stats.pit import log_pit_bets, sum_log_pit_bets
from canary.stats.products import LONGEST, block_length, sum_log
from tests.stats.make import columns


def exact(logs: np.ndarray) -> np.ndarray:
    """Sums over the first axis without rounding."""
    flat = logs.reshape(len(logs), math.prod(logs.shape[1:]))
    return np.array([math.fsum(flat[:, at]) for at in range(flat.shape[1])]).reshape(logs.shape[1:])


@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 31, 32, 33, 96, 257])
def test_blocks_of_any_number_of_tokens(tokens: int) -> None:
    factors = np.exp(np.random.default_rng(tokens).uniform(-2, 2, (tokens, 3, 2)))
    assert np.abs(sum_log(factors, 2.0) - exact(np.log(factors))).max() < 1e-12


def test_a_block_never_leaves_the_range_of_a_double() -> None:
    assert block_length(0.1) == LONGEST
    assert block_length(BEYOND) == 8
    assert block_length(1e9) == 1
    for most in (0.7, MAX_LOG_RATIO, BEYOND):
        for sign in (1, -1):
            found = sum_log(np.exp(np.full((100, 1), sign * most)), most)
            assert found == pytest.approx(100 * sign * most, rel=1e-13)


@pytest.mark.parametrize("scale", [1e-9, 0.1, 3.0, 30.0])
def test_bank_bets_and_certificates_keep_their_meaning(scale: float) -> None:
    rng = np.random.default_rng(1)
    ratios = rng.normal(0, scale, (200, 5))
    ratios[::17, 2], ratios[::19, 3] = -np.inf, 1e3  # never in the alternative; clipped
    assert np.abs(sum_log_bets(ratios) - exact(log_bets(ratios))).max() < 1e-12 * max(1.0, 200 * scale)
    for lam in (0.003, LAMBDAS[-1], 0.95):
        one_by_one = exact(log_inverse_bets(ratios, lam))
        assert sum_log_inverse_bets(ratios, [lam] * 5) == pytest.approx(one_by_one, rel=1e-13, abs=1e-12)


def test_pit_bets_keep_their_meaning() -> None:
    u = np.concatenate([np.random.default_rng(2).random((150, 2)), np.zeros((40, 2)), np.ones((40, 2))])
    assert np.abs(sum_log_pit_bets(u) - exact(log_pit_bets(u))).max() < 1e-12


def test_a_column_is_decoded_once_and_cannot_be_written_to() -> None:
    block = columns(log_prob=[-1.0, -2.0], pit_id=[0.1, 0.2])
    first = column(block, "log_prob")
    assert column(block, "log_prob") is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0.0
    same_numbers = columns(log_prob=[-1.0, -2.0], pit_id=[0.1, 0.2])
    assert column(same_numbers, "log_prob") is not first
