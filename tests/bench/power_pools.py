"""What the text-only tests read: texts of both arms on the same prompts, made by the same engines that ours judges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from canary.domain.pairs import DrafterKind
from tests.bench.power_blackbox import Floats, Ints
from tests.bench.worlds import BenchWorld, FaultyEngine, Inject, contexts_of, greedy
from tests.stats.world import CONTEXTS, VOCAB, K

PROMPTS = 25  # that are asked again and again
REFERENCES = 50  # local samples per prompt of the rank test
CHUNK = 1_000  # requests simulated side by side
END_MASS = 0.02  # of the tokens that stand for an end of text
_CLEAN_SEED, _FAULTY_SEED = 40_000_000, 50_000_000


@dataclass(frozen=True)
class Sizes:
    """How much text there is per arm.

    Args:
        repeats: texts of each of the `PROMPTS`.
        distinct: prompts that are asked once.
        greedy: prompts that are asked for greedy text.
    """

    repeats: int
    distinct: int
    greedy: int


SIZES = {"small": Sizes(40, 100, 40), "full": Sizes(600, 1_600, 400)}


def texts(world: BenchWorld, inject: Inject | None, prompts: torch.Tensor, seed: int, k: int = K) -> Ints:
    """One text per prompt, [n, L]; k = 0 is the baseline."""
    kind = DrafterKind.DENSE if k else DrafterKind.ONE_HOT
    engine = FaultyEngine(world, kind, k=k, traced=False, inject=inject)
    found = [engine.run(len(part), seed + i, prompts=part).tokens for i, part in enumerate(prompts.split(CHUNK))]
    return np.concatenate(found).astype(np.int16)


class Pools:
    """Both arms' texts in one world. The baseline's are made once and serve every fault.

    Args:
        sizes: of the pools.
    """

    def __init__(self, world: BenchWorld, sizes: Sizes) -> None:
        self.world, self.sizes, self.greedy = world, sizes, greedy(world)
        generator = torch.Generator().manual_seed(7)
        self._prompts = torch.randint(0, 1 << 30, (max(PROMPTS, sizes.distinct, sizes.greedy),), generator=generator)
        rows = world.target.numpy()
        order = np.argsort(-rows, axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(1, VOCAB + 1)[None].repeat(CONTEXTS, 0), axis=1)
        self._log_ranks = np.log(ranks)

    @property
    def _repeated(self) -> torch.Tensor:
        return self._prompts[:PROMPTS].repeat_interleave(self.sizes.repeats)

    def repeated(self, inject: Inject | None) -> Ints:
        """[PROMPTS, repeats, L] of the candidate."""
        return self._by_prompt(texts(self.world, inject, self._repeated, _FAULTY_SEED))

    @cached_property
    def baseline(self) -> Ints:
        """[PROMPTS, repeats, L] of the baseline."""
        return self._by_prompt(texts(self.world, None, self._repeated, _CLEAN_SEED, k=0))

    def _by_prompt(self, found: Ints) -> Ints:
        return found.reshape(PROMPTS, self.sizes.repeats, -1)

    def scores(self, inject: Inject | None) -> Floats:
        """Mean log-rank of one response to each of the distinct prompts, [distinct]."""
        prompts = self._prompts[: self.sizes.distinct]
        return self._score(prompts, texts(self.world, inject, prompts, _FAULTY_SEED + 10_000))

    @cached_property
    def references(self) -> Floats:
        """Scores of local reference samples, [distinct, REFERENCES]."""
        prompts = self._prompts[: self.sizes.distinct].repeat_interleave(REFERENCES)
        return self._score(prompts, texts(self.world, None, prompts, _CLEAN_SEED + 10_000, k=0)).reshape(-1, REFERENCES)

    def _score(self, prompts: torch.Tensor, tokens: Ints) -> Floats:
        return np.asarray(self._log_ranks[contexts_of(prompts.numpy(), tokens), tokens].mean(1))

    def greedy_equal(self, inject: Inject | None) -> np.ndarray:
        """Whether the candidate's greedy text is the baseline's, [greedy] bool."""
        prompts = self._prompts[: self.sizes.greedy]
        pair = (texts(self.greedy, inject, prompts, _FAULTY_SEED), texts(self.greedy, None, prompts, _CLEAN_SEED, k=0))
        return np.asarray((pair[0] == pair[1]).all(1))

    @cached_property
    def ends(self) -> Ints:
        """Token ids that stand for an end of text: `END_MASS` of the target's mass, averaged over contexts."""
        mean = self.world.target.numpy().mean(0)
        order = np.random.default_rng(3).permutation(VOCAB)
        return np.asarray(order[np.cumsum(mean[order]) <= END_MASS])
