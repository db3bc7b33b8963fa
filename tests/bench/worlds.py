"""Worlds A and B of the statistics' power tables, and engines over them with any injected fault.

The sampler is the shipped one, run by `tests.stats.world`; nothing here draws a token or reduces a row by another way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from canary.domain.pairs import DrafterKind
from canary.domain.traffic import SamplingParams
from canary.engine.faults import get_fault
from canary.engine.rows import Rows
from canary.engine.sampling import Draw, draw, process
from canary.engine.verify import Verified, Verify, verify
from tests.stats.world import LENGTH, Engine, Run, World, _context

_PLAIN = SamplingParams(max_tokens=LENGTH)
PARAMS = {"A": _PLAIN, "B": replace(_PLAIN, temperature=0.7, top_p=0.9)}


@dataclass(frozen=True)
class BenchWorld(World):
    """A world that also knows its rows at other temperatures.

    Args:
        raw_target, raw_draft: [CONTEXTS, VOCAB] logits, up to a constant per row.
        params: how both are processed.
    """

    raw_target: Tensor = field(default_factory=lambda: torch.zeros(0))
    raw_draft: Tensor = field(default_factory=lambda: torch.zeros(0))
    params: SamplingParams = _PLAIN

    def target_at(self, factor: float) -> Tensor:
        """Target rows at so many times their temperature, filtered as ever: [CONTEXTS, VOCAB]."""
        return _rows(self.raw_target, replace(self.params, temperature=self.params.temperature * factor))

    def draft_at(self, factor: float) -> Tensor:
        """The same of the draft rows."""
        return _rows(self.raw_draft, replace(self.params, temperature=self.params.temperature * factor))


def _rows(logits: Tensor, params: SamplingParams) -> Tensor:
    return process(logits, Rows.of([params], repeat=len(logits)))


def make(name: str) -> BenchWorld:
    """World A: temperature 1, no filter. World B: the same logits at temperature .7 and top-p .9, target and draft alike.

    Raises:
        ValueError: another name.
    """
    if name not in PARAMS:
        raise ValueError(f"there is no world {name!r}; use one of {', '.join(PARAMS)}")
    plain, params = World.make(), PARAMS[name]
    target, draft = plain.target.log(), plain.draft.log()
    return BenchWorld(
        _rows(target, params),
        _rows(draft, params),
        unfiltered=plain.target if name == "B" else None,
        raw_target=target,
        raw_draft=draft,
        params=params,
    )


def greedy(world: BenchWorld) -> BenchWorld:
    """The same models asked for greedy text: every row one-hot at its largest entry, at every temperature."""
    params = replace(_PLAIN, temperature=0.0)
    rows = (_rows(each, params) for each in (world.raw_target, world.raw_draft))
    return BenchWorld(*rows, raw_target=world.raw_target, raw_draft=world.raw_draft, params=params)


@dataclass
class Round:
    """What a fault can reach beside the arguments of `verify`: the engine's insides in the round at hand.

    Args:
        generator: the fault's own randomness.
        number: of the round, from 0 in every run.
        prompts: [B].
        last: [B, 2] last two tokens before the round.
        contexts: [B, k+1] along the drafts.
        uniforms, noise: what the drafts of the round were drawn with, one entry per draft.
        carry: what a fault keeps from round to round, [B, ...] of the requests that go on.
    """

    world: BenchWorld
    generator: torch.Generator
    number: int = -1
    prompts: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    last: Tensor = field(default_factory=lambda: torch.zeros(0, 2, dtype=torch.int64))
    contexts: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))
    uniforms: list[Tensor] = field(default_factory=list)
    noise: list[Tensor] = field(default_factory=list)
    carry: dict[str, Tensor] = field(default_factory=dict)

    def begin(self, prompts: Tensor, last: Tensor) -> None:
        """A new round of the requests that are not finished."""
        self.number += 1
        self.prompts, self.last = prompts, last
        self.uniforms.clear()
        self.noise.clear()

    def close(self, found: Verified, **kept: Tensor) -> None:
        """Keep values for the next round; requests that are done by then are dropped from them, as the engine drops them.

        Args:
            kept: [B, ...] each.
        """
        count = self.carry.get("count", torch.zeros_like(found.num_accepted)) + found.num_accepted + 1
        going = count < LENGTH
        self.carry = {name: values[going] for name, values in {**kept, "count": count}.items()}


Inject = Callable[[Round], tuple[Verify, Draw]]


def shipped(name: str) -> Inject:
    """A fault of the shipped library, by its name."""

    def inject(round_: Round) -> tuple[Verify, Draw]:
        fault = get_fault(name, DrafterKind.DENSE)
        return fault.wrap_verify(verify), fault.wrap_draw(draw)

    return inject


@dataclass
class FaultyEngine(Engine):
    """An engine with dense drafts whose `verify` and `draw` come from a fault.

    Args:
        inject: None is the clean engine.
    """

    inject: Inject | None = None

    def run(self, requests: int, seed: int, *, want_tv: bool = False, prompts: Tensor | None = None) -> Run:
        """See `Engine.run`."""
        if not isinstance(self.world, BenchWorld):
            raise TypeError("faults need a BenchWorld; use `make`")
        self._round = Round(self.world, torch.Generator().manual_seed(seed + 987_654_321))
        if self.inject is not None:
            self._verify, self._draw = self.inject(self._round)
        return super().run(requests, seed, want_tv=want_tv, prompts=prompts)

    def _propose(self, prompts: Tensor, last: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        self._round.begin(prompts, last)
        proposed = super()._propose(prompts, last, generator)
        self._round.contexts = proposed[0]
        return proposed


def context_after(prompts: Tensor, last: Tensor) -> Tensor:
    """The context of the token that follows: [B] and [B, 2] to [B]."""
    return _context(prompts, last)


def contexts_of(prompts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The context that every token was drawn in.

    Args:
        prompts: [n].
        tokens: [n, LENGTH].
    """
    before = np.concatenate([np.zeros((len(tokens), 2), dtype=np.int64), tokens.astype(np.int64)], axis=1)
    asked = torch.tensor(prompts).repeat_interleave(tokens.shape[1])
    last = torch.tensor(np.stack([before[:, :-2].ravel(), before[:, 1:-1].ravel()], axis=1))
    return _context(asked, last).numpy().reshape(tokens.shape)
