"""Published tests that see texts alone, as the baselines of the comparison: each is written from its formula and never improved.

MMD is `mmd_hamming` of the public package model-equality-testing (Gao, Liang, Guestrin: "Model equality testing", ICLR 2025), in
numpy: the package recomputes every kernel for every permutation, which at these sizes takes hours. A test holds the two equal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

PERMUTATIONS = 199
MIN_CELL = 10  # chi-square: rarer first tokens are merged
FRACTIONS = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8])  # of the wealth, staked on a payoff in [-1, 1]


def hamming(left: Ints, right: Ints) -> Floats:
    """Kernel k(x, y) = share of positions at which x and y agree, for every pair.

    Args:
        left: [P, n, L] samples of P prompts.
        right: [P, m, L].

    Returns:
        [P, n, m] float32.
    """
    found = np.zeros((*left.shape[:2], right.shape[1]), dtype=np.float32)
    for at in range(left.shape[2]):
        found += left[:, :, None, at] == right[:, None, :, at]
    return found / left.shape[2]


def mmd_squared(gram: Floats, signs: Floats) -> Floats:
    """Unbiased MMD^2 of the two halves that each labelling makes of a joint sample, over pairs of the same prompt.

    Args:
        gram: [P, 2n, 2n] kernel of the joint sample.
        signs: [B, P, 2n] of +1 (first sample) and -1, n of each per prompt.

    Returns:
        [B].
    """
    prompts, size = gram.shape[:2]
    n = size // 2
    diagonal = np.trace(gram, axis1=1, axis2=2).sum()
    total = gram.sum() - diagonal
    # s'Ks = (within - between) + diagonal, and within + between = total.
    form = sum((signs[:, at] @ gram[at] * signs[:, at]).sum(-1) for at in range(prompts)) - diagonal
    within, between = (total + form) / 2, (total - form) / 2
    return np.asarray(within / (prompts * n * (n - 1)) - between / (prompts * n * n))


def mmd_p_value(gram: Floats, rng: np.random.Generator) -> float:
    """Permutation test within prompts; the first n rows of every prompt are the first sample.

    Args:
        gram: [P, 2n, 2n].
    """
    prompts, size = gram.shape[:2]
    observed = np.concatenate([np.ones(size // 2), -np.ones(size // 2)]).astype(np.float32)
    signs = np.broadcast_to(observed, (PERMUTATIONS + 1, prompts, size)).copy()
    signs[1:] = rng.permuted(signs[1:], axis=-1)
    found = mmd_squared(gram, signs)
    return float(np.mean(found >= found[0] - 1e-12))


def witness_bets(baseline: Ints, candidate: Ints, stop: float = np.inf) -> Floats:
    """Two-sample betting on the Hamming witness of each prompt (Shekhar and Ramdas, 2112.09162).

    The payoff of a pair is the difference of the witness, learnt from earlier sweeps alone, at its two texts; it is antisymmetric
    in the pair, so clipping and any scale from the past keep its mean 0 under equality.

    Args:
        baseline, candidate: [P, n, L].
        stop: log wealth at which the rest is left out.

    Returns:
        [fractions, sweeps] log wealth of every fixed fraction after each sweep over the prompts.
    """
    prompts, n, length = baseline.shape
    size = int(max(baseline.max(), candidate.max())) + 1
    seen = np.zeros(prompts * length * size)
    base = np.arange(prompts * length).reshape(prompts, length) * size
    wealth, square, count = np.zeros(len(FRACTIONS)), 0.0, 0.0
    found = []
    for sweep in range(n):
        x, y = base + candidate[:, sweep], base + baseline[:, sweep]  # [P, L]
        payoff = (seen[x] - seen[y]).sum(1)
        if square > 0:
            wealth = wealth + np.log1p(FRACTIONS * np.clip(payoff / (2 * np.sqrt(square / count)), -1, 1)[:, None]).sum(0)
        found.append(wealth)
        if log_mixture(wealth) >= stop:
            break
        # The witness is a sum over the past, so its size grows: the newest sweeps say how large the next payoff will be.
        square, count = 0.9 * square + float((payoff**2).sum()), 0.9 * count + prompts
        # Positions of a text are distinct cells, so plain indexed addition counts each once.
        seen[x] += 1
        seen[y] -= 1
    return np.stack(found, axis=1)


def log_mixture(wealth: Floats) -> float:
    """Log of the mean over fractions of exp(wealth)."""
    return float(np.logaddexp.reduce(wealth) - np.log(len(wealth)))


def sequential_mmd(baseline: Ints, candidate: Ints, alpha: float) -> int | None:
    """Sweeps until the mixture of `witness_bets` is worth 1 / alpha, None if it never is."""
    wealth = witness_bets(baseline, candidate, np.log(1 / alpha))
    return wealth.shape[1] if log_mixture(wealth[:, -1]) >= np.log(1 / alpha) else None


def rank_values(scores: Floats, references: Floats, rng: np.random.Generator) -> Floats:
    """Randomised rank of one response's score among local reference samples (Zhu et al., 2506.06975): uniform under equality.

    Args:
        scores: [n], one response per prompt.
        references: [n, m].

    Returns:
        [n] in [0, 1].
    """
    below = (references < scores[:, None]).sum(1)
    ties = (references == scores[:, None]).sum(1)
    return np.asarray((below + rng.random(len(scores)) * (ties + 1)) / (references.shape[1] + 1))


def rank_uniformity_p_value(values: Floats) -> float:
    """Cramer-von Mises test of uniform ranks."""
    return float(stats.cramervonmises(values, "uniform").pvalue)


def first_token_p_value(baseline: Ints, candidate: Ints) -> float:
    """Chi-square of first tokens, prompt by prompt; a prompt's rare tokens are merged.

    Args:
        baseline, candidate: [P, n, L].
    """
    statistic, freedom = 0.0, 0
    for left, right in zip(baseline[:, :, 0], candidate[:, :, 0], strict=True):
        size = int(max(left.max(), right.max())) + 1
        table = np.stack([np.bincount(left, minlength=size), np.bincount(right, minlength=size)])
        rare = table.sum(0) < MIN_CELL
        table = np.concatenate([table[:, ~rare], table[:, rare].sum(1, keepdims=True)], axis=1)
        table = table[:, table.sum(0) > 0]
        if table.shape[1] > 1:
            expected = table.sum(0) / 2  # as many texts on either side
            statistic += float((((table - expected) ** 2) / expected).sum())
            freedom += table.shape[1] - 1
    return float(stats.chi2.sf(statistic, freedom)) if freedom else 1.0


def length_p_value(baseline: Ints, candidate: Ints) -> float:
    """Two-sample Kolmogorov-Smirnov test on lengths.

    Args:
        baseline, candidate: [n] lengths.
    """
    return float(stats.ks_2samp(baseline, candidate, method="asymp").pvalue)


def lengths(tokens: Ints, ends: Ints) -> Ints:
    """Tokens up to and including the first that ends a text; all of them where none does.

    Args:
        tokens: [..., L].
        ends: ids that end a text.
    """
    hit = np.isin(tokens, ends)
    return np.asarray(np.where(hit.any(-1), hit.argmax(-1) + 1, tokens.shape[-1]))
