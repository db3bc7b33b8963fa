"""Attempts under the default policy against faults that certificates about single tokens do not see: killed, promoted or held?

The world, its engine and the battery are the shipped ones; each fault is a few lines over a clean `verify` and `draw`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from canary.domain.evidence import Verdict
from canary.domain.pairs import DrafterKind, Pair
from canary.engine.sampling import Drawn
from canary.engine.sampling import draw as clean_draw
from canary.engine.verify import Verified
from canary.engine.verify import verify as clean_verify
from canary.stats.battery import Battery
from canary.stats.calibration import calibrate
from canary.stats.part import Context
from tests.stats.experiments import stored
from tests.stats.world import CALIBRATING, Engine, Item, K, World, context_of, pair_of

BLOCK = 60  # requests that are simulated side by side, and after which a rollout is looked at
CERTIFICATES = ("bank_certificate", "pit_certificate", "request_certificate")
ALPHA = 0.01
CORRUPTED_SHARE = 0.02


def most_promoted(runs: int) -> int:
    """Promotions that alpha plus three standard errors allow."""
    return math.floor(runs * ALPHA + 3 * math.sqrt(runs * ALPHA * (1 - ALPHA)))


@dataclass
class Faulty:
    """One engine with a fault, whose requests come in blocks.

    Args:
        world: of the simulation.
    """

    world: World
    kind: DrafterKind = DrafterKind.DENSE

    def engine(self) -> Engine:
        """The engine whose requests calibrate and are tested."""
        return Engine(self.world, self.kind)

    def block(self, size: int, seed: int, first: int, calibration_hash: str) -> list[Pair]:
        """Requests of the route, ordinals from `first` on."""
        run = self.engine().run(size, seed, want_tv=not calibration_hash)
        return [pair_of(run, i, first + i, _plain(seed, i), calibration_hash) for i in range(size)]


def _plain(seed: int, request: int) -> tuple[int, ...]:
    """A baseline's answer, of which only the word frequencies count: draws from a flat vocabulary."""
    return tuple(np.random.default_rng((seed, request)).integers(0, 256, 96).tolist())


class WholeRequests(Faulty):
    """One request of fifty is wholly drawn from the drafter's rows."""

    def block(self, size: int, seed: int, first: int, calibration_hash: str) -> list[Pair]:
        pairs = super().block(size, seed, first, calibration_hash)
        bad = np.flatnonzero(np.random.default_rng(seed).random(size) < CORRUPTED_SHARE).tolist()
        if bad:
            rows = torch.stack([self.world.draft, self.world.draft])
            run = Engine(self.world, self.kind, true_rows=rows).run(len(bad), seed + 1, want_tv=not calibration_hash)
            for at, request in enumerate(bad):
                pairs[request] = pair_of(run, at, first + request, _plain(seed, request), calibration_hash)
        return pairs


class SharedSeeds(Faulty):
    """Every request of a block draws with the same random numbers."""

    def engine(self) -> Engine:
        engine = super().engine()

        def same(uniforms: Tensor) -> Tensor:
            return uniforms[:1].expand(uniforms.shape)

        engine._verify = lambda p, d, n, q, accept, following: clean_verify(p, d, n, q, same(accept), same(following))
        engine._draw = lambda probs, uniforms: clean_draw(probs, same(uniforms))
        return engine


class ReusedUniforms(Faulty):
    """The uniform that rejected a draft draws the recovered token, too."""

    def engine(self) -> Engine:
        engine = super().engine()

        def reused(p: Tensor, d: Tensor, n: Tensor, q: Tensor | None, accept: Tensor, following: Tensor) -> Verified:
            return clean_verify(p, d, n, q, accept, torch.cat([accept, following[:, -1:]], 1))

        engine._verify = reused
        return engine


class Accepting(Faulty):
    """Drafts are accepted with 1.1 times their probability."""

    def engine(self) -> Engine:
        engine = super().engine()
        engine._verify = lambda p, d, n, q, accept, following: clean_verify(p, d, n, q, accept / 1.1, following)
        return engine


@dataclass
class _Noise:
    """Gumbel noise of a round's draft positions, drawn by the drafter and used again by the recovered token."""

    rounds: list[Tensor] = field(default_factory=list)

    def draw(self, probs: Tensor, uniforms: Tensor) -> Drawn:
        generator = torch.Generator().manual_seed(int(float(uniforms[0]) * 2**53))
        noise = -torch.empty_like(probs, dtype=torch.float64).exponential_(generator=generator).log()
        self.rounds.append(noise)
        return Drawn((probs.double().log() + noise).argmax(-1), probs)

    def verify(self, p: Tensor, d: Tensor, n: Tensor, q: Tensor | None, accept: Tensor, following: Tensor) -> Verified:
        clean = clean_verify(p, d, n, q, accept, following)
        noise, rows = torch.stack(self.rounds, 1), torch.arange(len(p))  # [n, k, V]
        self.rounds.clear()
        assert q is not None
        at = clean.num_accepted.clamp_max(K - 1)
        residual = (p[rows, at].double() - q[rows, at].double()).clamp_min(0)
        token = (residual.log() + noise[rows, at]).argmax(-1)
        return clean._replace(next_token=torch.where(clean.num_accepted < n, token, clean.next_token))


class SharedNoise(Faulty):
    """Draft and recovered token are the largest of the same noise."""

    def engine(self) -> Engine:
        engine, noise = super().engine(), _Noise()
        engine._verify, engine._draw = noise.verify, noise.draw
        return engine


FAULTS: dict[str, Callable[[World], Faulty]] = {
    "whole_requests": WholeRequests,
    "shared_seeds": SharedSeeds,
    "reused_uniforms": ReusedUniforms,
    "shared_noise": SharedNoise,
    "accepting": Accepting,
}


def attempt(faulty: Faulty, requests: int, seed: int) -> tuple[str, int]:
    """One rollout in shadow: (`killed`, `promoted` or `held`, requests folded).

    It is promoted when, at a look, nothing is proven or suspected and all three certificates pass; gates on rows, acceptance and
    speed would only make it later. Looks are at the end of every block.
    """
    context = context_of(faulty.kind)
    pairs = faulty.block(CALIBRATING, seed, 0, "")
    record = calibrate(pairs, context)
    battery = Battery(replace(context, calibration=record))
    state = battery.fold(battery.start(), _items(context, pairs))
    while state.folded < requests:
        pairs = faulty.block(BLOCK, seed + state.folded, state.folded, record.hash)
        state = battery.fold(state, _items(battery.context, pairs))
        gates = {g.gate: g.verdict for g in battery.assess(state)}
        if gates["losslessness"] is Verdict.FAIL:
            return "killed", state.folded
        if all(gates.get(name) is Verdict.PASS for name in ("losslessness", *CERTIFICATES)):
            return "promoted", state.folded
    return "held", state.folded


def _items(context: Context, pairs: Sequence[Pair]) -> list[Item]:
    return list(stored(Battery(context), pairs))


def outcomes(make: Callable[[World], Faulty], world: World, runs: int, requests: int, seed: int) -> Counter[str]:
    """How so many attempts end."""
    return Counter(attempt(make(world), requests, seed + 10_000 * run)[0] for run in range(runs))
