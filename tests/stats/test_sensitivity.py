"""Planning figures against simulation and against the closed forms that they come from."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from canary.domain.pairs import DrafterKind
from canary.domain.policy import Gates
from canary.domain.traffic import Stratum
from canary.stats.bets import LAMBDAS, log_bets
from canary.stats.sensitivity import Traffic, chi_square, row_needs, sampled_needs, smallest_share
from tests.stats.make import context
from tests.stats.world import context_of

P, A = np.array([0.5, 0.5]), np.array([0.8, 0.2])
CHI2 = float((P * (A / P - 1) ** 2).sum())
TV = 0.3


@pytest.mark.parametrize("strength", [0.01, 0.03])
def test_chi_square_is_read_off_a_certificates_growth(strength: float) -> None:
    growth = float(-(P * np.log1p(strength * (A / P - 1))).sum())
    assert chi_square(growth, strength, TV) == pytest.approx(CHI2, rel=0.02)


def test_chi_square_is_never_below_its_bound() -> None:
    assert chi_square(-0.1, 0.03, TV) == pytest.approx(4 * TV**2)


@pytest.mark.parametrize("num_tokens", [2_000, 20_000])
def test_the_smallest_share_is_killed_nine_times_in_ten(num_tokens: int) -> None:
    goal = math.log(100) + math.log(500)
    share = smallest_share(CHI2, num_tokens, goal)
    assert share is not None
    rng, truth = np.random.default_rng(1), (1 - share) * P + share * A
    hits = rng.binomial(num_tokens, truth[0], 4000)  # tokens 0 of each run
    bets = log_bets(np.log(A / P))  # [2, strengths]
    logs = hits[:, None] * bets[0] + (num_tokens - hits)[:, None] * bets[1]  # [runs, strengths], at the end
    assert np.mean(logs.max(axis=1) >= goal) == pytest.approx(0.9, abs=0.05)
    weaker = rng.binomial(num_tokens, ((1 - share / 2) * P + share / 2 * A)[0], 4000)
    logs = weaker[:, None] * bets[0] + (num_tokens - weaker)[:, None] * bets[1]
    assert np.mean(logs.max(axis=1) >= goal) < 0.2


def test_more_tokens_find_less_and_few_find_nothing() -> None:
    shares = [smallest_share(CHI2, n, 10.0) for n in (1_000, 10_000, 100_000)]
    assert all(s is not None for s in shares)
    assert shares == sorted(shares, key=lambda s: -(s or 0))
    assert smallest_share(CHI2, 10, 10.0) is None
    assert smallest_share(CHI2, 1_000_000_000, 10.0) == pytest.approx(0.0, abs=LAMBDAS[0])


def test_certificates_need_what_their_closed_forms_say() -> None:
    where = context_of(DrafterKind.DENSE)
    traffic = Traffic(tokens=96.0, baseline_tokens=96.0, informative=70.0)
    needs = sampled_needs(where, traffic, {"cold": 2e-4, "draft": 1e-3})
    assert needs["bank_certificate"].requests == math.ceil(math.log(100) / 2e-4 / 96)  # 23,026 tokens at most
    assert needs["bank_certificate"].slowest == "cold"
    assert needs["pit_certificate"].requests == math.ceil(math.log(100) / (2 * 0.01**2 * 3) / 96)  # about 7,700 tokens
    assert needs["request_certificate"].requests == 459


def test_a_route_with_few_choices_waits_for_informative_tokens() -> None:
    where = context_of(DrafterKind.DENSE)
    rare = sampled_needs(where, Traffic(96.0, 96.0, informative=0.5), {"draft": 1.0})["bank_certificate"]
    assert (rare.requests, rare.slowest) == (1000, "informative tokens")
    never = sampled_needs(where, Traffic(96.0, 96.0, informative=0.0), {"draft": 1.0})["bank_certificate"]
    assert never.requests is None
    assert sampled_needs(where, Traffic(96.0, 96.0, 50.0), {})["bank_certificate"].requests is None


def test_row_gates_need_the_named_numbers() -> None:
    where = context(Gates(row_margin=0.02, noise_floor_positions=1000))
    traffic = Traffic(tokens=40.0, baseline_tokens=20.0, informative=30.0)
    needs = row_needs(where, Stratum.GREEDY, traffic)
    assert needs["row_gate"].requests is not None
    assert 44 <= needs["row_gate"].requests <= 55  # 44 at zero noise, and the mixture's price
    assert needs["gap_certificate"].requests is not None
    assert 4600 / 40 <= needs["gap_certificate"].requests <= 5000 / 40
    short = row_needs(context(replace(where.gates, noise_floor_positions=50_000)), Stratum.SAMPLED, traffic)["outliers"]
    assert (short.requests, short.slowest) == (2500, "baseline positions for the noise floor")
    assert "gap_certificate" not in row_needs(where, Stratum.SAMPLED, traffic)
