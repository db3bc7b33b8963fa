"""The text-only tests of the comparison: they equal their formulas and the public package, keep their level and find a shift."""

from __future__ import annotations

import numpy as np
import pytest
from model_equality_testing.distribution import CompletionSample
from model_equality_testing.tests import mmd_hamming

from tests.bench import power_blackbox as tests

PROMPTS, LENGTH, VOCAB = 4, 12, 6


def draw(rng: np.random.Generator, n: int, lean: float = 0.0) -> np.ndarray:
    """[PROMPTS, n, LENGTH] tokens, the first id preferred by `lean`."""
    mass = np.full(VOCAB, (1 - lean) / VOCAB)
    mass[0] += lean
    return rng.choice(VOCAB, p=mass, size=(PROMPTS, n, LENGTH))


def observed(n: int) -> np.ndarray:
    return np.broadcast_to(np.concatenate([np.ones(n), -np.ones(n)]), (1, PROMPTS, 2 * n)).astype(np.float32)


def test_mmd_is_that_of_the_public_package() -> None:
    rng = np.random.default_rng(0)
    for lean in (0.0, 0.5):
        x, y = draw(rng, 7, lean), draw(rng, 7)
        prompts = np.repeat(np.arange(PROMPTS), 7)
        theirs = mmd_hamming(*(CompletionSample(prompts, s.reshape(-1, LENGTH), PROMPTS) for s in (x, y)))
        joint = np.concatenate([x, y], axis=1)
        mine = tests.mmd_squared(tests.hamming(joint, joint), observed(7))
        assert mine[0] == pytest.approx(theirs, abs=1e-6)


def test_mmd_is_the_unbiased_mean_over_pairs() -> None:
    rng = np.random.default_rng(1)
    x, y = draw(rng, 3, 0.3), draw(rng, 3)

    def mean(left: np.ndarray, right: np.ndarray, same: bool) -> float:
        pairs = [
            float(np.mean(left[p, i] == right[p, j]))
            for p in range(PROMPTS)
            for i in range(3)
            for j in range(3)
            if not (same and i == j)
        ]
        return sum(pairs) / len(pairs)

    joint = np.concatenate([x, y], axis=1)
    found = tests.mmd_squared(tests.hamming(joint, joint), observed(3))[0]
    assert found == pytest.approx(mean(x, x, True) - 2 * mean(x, y, False) + mean(y, y, True), abs=1e-6)


def test_permutations_keep_the_level_and_find_a_shift() -> None:
    rng = np.random.default_rng(2)

    def rejects(lean: float) -> bool:
        joint = np.concatenate([draw(rng, 10, lean), draw(rng, 10)], axis=1)
        return tests.mmd_p_value(tests.hamming(joint, joint), rng) <= 0.05

    assert sum(rejects(0.0) for _ in range(100)) <= 12  # 100 * .05 + 3 standard errors, rounded up
    assert all(rejects(0.5) for _ in range(5))


def test_the_sequential_payoff_is_fair_whatever_the_past() -> None:
    """Swapping the arms of a pair turns its payoff round, so that the mean wealth over all swaps is exactly 1."""
    rng = np.random.default_rng(3)
    x, y = draw(rng, 5)[:1], draw(rng, 5)[:1]
    wealth = []
    for swap in np.ndindex(2, 2, 2, 2, 2):
        one, two = x.copy(), y.copy()
        for sweep, turned in enumerate(swap):
            if turned:
                one[:, sweep], two[:, sweep] = y[:, sweep], x[:, sweep]
        wealth.append(np.exp(tests.witness_bets(one, two)).mean(0)[-1])
    assert np.mean(wealth) == pytest.approx(1.0, abs=1e-12)
    assert np.ptp(wealth) > 0.1


def test_sequential_mmd_keeps_the_level_and_finds_a_shift() -> None:
    rng = np.random.default_rng(4)
    assert sum(tests.sequential_mmd(draw(rng, 60), draw(rng, 60), 0.05) is not None for _ in range(60)) <= 8
    found = [tests.sequential_mmd(draw(rng, 60), draw(rng, 60, 0.4), 0.01) for _ in range(5)]
    assert all(sweeps is not None and sweeps <= 40 for sweeps in found)


def test_ranks_are_uniform_under_equality_ties_included() -> None:
    rng = np.random.default_rng(5)
    scores, references = rng.integers(0, 4, 4_000).astype(float), rng.integers(0, 4, (4_000, 9)).astype(float)
    values = tests.rank_values(scores, references, rng)
    assert tests.rank_uniformity_p_value(values) > 0.01
    assert tests.rank_uniformity_p_value(tests.rank_values(scores + 0.5, references, rng)) < 1e-6


def test_first_tokens_and_lengths_keep_the_level_and_find_a_shift() -> None:
    rng = np.random.default_rng(6)
    ends = np.array([0])

    def p_values(lean: float) -> tuple[float, float]:
        left, right = draw(rng, 100), draw(rng, 100, lean)
        return tests.first_token_p_value(left, right), tests.length_p_value(
            tests.lengths(left, ends).ravel(), tests.lengths(right, ends).ravel()
        )

    clean = np.array([p_values(0.0) for _ in range(100)])
    assert ((clean <= 0.05).sum(0) <= 12).all()
    assert max(p_values(0.5)) < 1e-4


def test_a_text_ends_at_its_first_end() -> None:
    assert tests.lengths(np.array([[3, 0, 5, 0], [1, 2, 3, 4]]), np.array([0, 5])).tolist() == [2, 4]
