"""Every method of the comparison as one function from a fault to its tokens, and how a power is read off.

Tests with a fixed number of texts are given the benefit of the doubt: their tokens are the smallest number on a doubling grid at
which at least half of the repeats reject. Someone who looks after every text may not use them so; the table says it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tests.bench import power_blackbox as tests
from tests.bench.power_ours import kills
from tests.bench.power_pools import PROMPTS, Pools
from tests.bench.worlds import Inject
from tests.stats.world import LENGTH

ALPHA = 0.01
PER_PROMPT = (2, 5, 10, 20, 40, 75, 150, 300, 600, 1_200)  # texts of each repeated prompt
DISTINCT = (6, 12, 25, 50, 100, 200, 400, 800, 1_600, 3_200)
MOST_REPEATS = 20


@dataclass(frozen=True)
class Found:
    """What one method made of one fault.

    Args:
        tokens: candidate tokens to detection; None where under half of the runs detected.
        limit: most tokens that it was given.
        runs: tokens of each run (sequential methods; None: not detected).
        power: tokens -> share of repeats that reject (fixed-n methods).
    """

    tokens: float | None
    limit: int
    runs: Sequence[int | None] = ()
    power: Sequence[tuple[int, float]] = ()

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def median(runs: Sequence[int | None]) -> float | None:
    """Median with undetected runs at infinity."""
    middle = statistics.median([math.inf if run is None else run for run in runs])
    return None if math.isinf(middle) else float(middle)


def _fixed(grid: Sequence[int], size: int, per_unit: int, reject: Callable[[slice], bool]) -> Found:
    """Power on disjoint blocks of a pool.

    Args:
        grid: sizes in units, growing.
        size: units in the pool.
        per_unit: candidate tokens of a unit.
        reject: the test on a block of units.
    """
    power = []
    for n in (n for n in grid if n <= size):
        repeats = min(size // n, MOST_REPEATS)
        share = sum(reject(slice(i * n, (i + 1) * n)) for i in range(repeats)) / repeats
        power.append((n * per_unit, share))
        if share >= 0.9:
            break
    reached = [tokens for tokens, share in power if share >= 0.5]
    return Found(float(reached[0]) if reached else None, max(n for n in grid if n <= size) * per_unit, power=power)


def ours(pools: Pools, inject: Inject | None, runs: int, limit: int) -> Found:
    """The shipped battery on the engine's own trace."""
    found = list(kills(pools.world, inject, runs, limit, seed=6_000_000))
    return Found(median(found), limit, found)


class BlackBox:
    """All text-only methods on one fault's texts.

    Args:
        pools: of the world.
        inject: None is the clean engine, a check of the tests themselves.
    """

    def __init__(self, pools: Pools, inject: Inject | None) -> None:
        self.pools, self.inject = pools, inject
        self._texts: np.ndarray | None = None

    @property
    def texts(self) -> np.ndarray:
        """[PROMPTS, repeats, L] of the candidate, made when first asked for."""
        if self._texts is None:
            self._texts = self.pools.repeated(self.inject)
        return self._texts

    def _per_prompt(self, p_value: Callable[[np.ndarray, np.ndarray], float]) -> Found:
        def reject(at: slice) -> bool:
            return p_value(self.pools.baseline[:, at], self.texts[:, at]) <= ALPHA

        return _fixed(PER_PROMPT, self.pools.sizes.repeats, PROMPTS * LENGTH, reject)

    def mmd(self) -> Found:
        """Model Equality Testing: MMD with the Hamming kernel, permutation test."""
        rng = np.random.default_rng(1)

        def p_value(baseline: np.ndarray, candidate: np.ndarray) -> float:
            joint = np.concatenate([candidate, baseline], axis=1)
            return tests.mmd_p_value(tests.hamming(joint, joint), rng)

        return self._per_prompt(p_value)

    def sequential_mmd(self) -> Found:
        """Betting on the Hamming witness; the pool is cut in four runs, or two or one where four are too short."""
        size, per_sweep = self.pools.sizes.repeats, PROMPTS * LENGTH
        for parts in (4, 2, 1):
            n = size // parts
            blocks = [slice(i * n, (i + 1) * n) for i in range(parts)]
            sweeps = [tests.sequential_mmd(self.pools.baseline[:, at], self.texts[:, at], ALPHA) for at in blocks]
            runs = [None if sweep is None else sweep * per_sweep for sweep in sweeps]
            if median(runs) is not None:
                break
        return Found(median(runs), n * per_sweep, runs)

    def rank_uniformity(self) -> Found:
        """Rank uniformity test: one response per prompt among local reference samples."""
        values = tests.rank_values(self.pools.scores(self.inject), self.pools.references, np.random.default_rng(2))
        return _fixed(DISTINCT, len(values), LENGTH, lambda at: tests.rank_uniformity_p_value(values[at]) <= ALPHA)

    def first_token(self) -> Found:
        """Chi-square of first tokens."""
        return self._per_prompt(tests.first_token_p_value)

    def length(self) -> Found:
        """Kolmogorov-Smirnov test on lengths."""

        def p_value(baseline: np.ndarray, candidate: np.ndarray) -> float:
            ends = self.pools.ends
            return tests.length_p_value(tests.lengths(baseline, ends).ravel(), tests.lengths(candidate, ends).ravel())

        return self._per_prompt(p_value)

    def exact_match(self) -> Found:
        """Paired greedy texts: tokens up to the first that differs, in runs of 40 requests.

        These worlds have no numeric noise, so a single mismatch is proof; on a real engine it is not.
        """
        equal, size = self.pools.greedy_equal(self.inject), 40
        blocks = [equal[at : at + size] for at in range(0, len(equal), size)]
        runs = [None if block.all() else (int(block.argmin()) + 1) * LENGTH for block in blocks]
        return Found(median(runs), size * LENGTH, runs)


METHODS: dict[str, tuple[str, bool]] = {
    # name -> (for people, valid however often one looks)
    "ours": ("Canary (own trace)", True),
    "sequential_mmd": ("MMD, sequential bets", True),
    "mmd": ("MMD (Model Equality Testing), fixed n", False),
    "rank_uniformity": ("rank uniformity test, fixed n", False),
    "first_token": ("chi-square on first tokens, fixed n", False),
    "length": ("KS on lengths, fixed n", False),
    "exact_match": ("exact match of greedy texts", True),
}
