"""Whole requests through our loop: adaptive k against no drafts, the cost formula, and transformers' assisted loop.

Every turn is timed back to back with what it is compared with; nothing here judges a figure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from canary.domain.traffic import SamplingParams
from canary.engine.adaptive import AdaptiveK, CostTable
from canary.engine.decode import Decoder
from canary.engine.drafters.adaptive import AdaptiveDrafter
from canary.engine.drafters.drawing import Drawing
from canary.engine.drafters.early_exit import EarlyExitDrafter
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.hooks import of_verification
from canary.engine.probe import verify_costs
from canary.engine.requests import Job, Running


def plain(rows: RowForward, words: Any, ends: frozenset[int]) -> Decoder:
    """k = 0."""
    return Decoder(rows, words, ends, clock=perf_counter)


def fixed(rows: RowForward, words: Any, ends: frozenset[int], k: int, max_ngram: int) -> Decoder:
    """n-grams, always k of them."""
    return Decoder(rows, words, ends, NgramDrafter(rows.num_rows, max_ngram), k, clock=perf_counter)


def adaptive(rows: RowForward, words: Any, ends: frozenset[int], k: int, max_ngram: int) -> Decoder:
    """n-grams with adaptive k, as the engine builds them."""
    inner = NgramDrafter(rows.num_rows, max_ngram)
    drafter = AdaptiveDrafter(inner, AdaptiveK(CostTable.of(verify_costs(rows)), k, rows.num_rows))
    hooks = of_verification("token", inner.kind)
    return Decoder(rows, words, ends, drafter, k, hooks=hooks, clock=perf_counter, pads=False)


@dataclass(frozen=True, slots=True)
class Run:
    """Requests that ran together.

    Args:
        seconds: of all of them.
        decoding: of those after the first token; of one request alone.
    """

    done: tuple[Running, ...]
    seconds: float
    decoding: float

    @property
    def num_tokens(self) -> int:
        return sum(len(running.token_ids) for running in self.done)


def run(loop: Decoder, prompts: Sequence[Sequence[int]], new: int, temperature: float) -> Run:
    """All prompts together, under the same keys in every loop."""
    jobs = [Job(i, tuple(ids), SamplingParams(new, temperature=temperature), (i, 1)) for i, ids in enumerate(prompts)]
    start = perf_counter()
    done = tuple(loop.run(jobs))
    end = perf_counter()
    return Run(done, end - start, end - (done[0].first_at or end))


def turns(
    loops: dict[str, Decoder], asked: Sequence[Sequence[Sequence[int]]], new: int, temperature: float, rng: random.Random
) -> list[dict[str, Run]]:
    """Every loop on every group of prompts, in random order within a group."""
    found = []
    for prompts in asked:
        order, runs = list(loops), {}
        rng.shuffle(order)
        for name in order:
            runs[name] = run(loops[name], prompts, new, temperature)
        found.append(runs)
    return found


def per_token(runs: dict[str, Run], faster: str, slower: str) -> float:
    """Speed of one over another in tokens a second, first tokens and prefill included."""
    return (runs[slower].seconds / runs[slower].num_tokens) / (runs[faster].seconds / runs[faster].num_tokens)


def of_formula(runs: dict[str, Run], drafted: str, none: str, costs: dict[int, float]) -> tuple[float, float]:
    """Speed of one request with drafts over k = 0, after the first token: as measured, and from its accept counts and step costs.

    Args:
        costs: time of a step by its width, over width 1.
    """
    one, zero = runs[drafted], runs[none]
    (running,), tokens = one.done, one.num_tokens - 1
    widths = [drafts + 1 if drafts else 1 for drafts in running.drafted[1:]]
    widest = max(costs)
    formula = tokens / sum(costs[1] if width == 1 else costs[widest] for width in widths)
    measured = (zero.decoding / (zero.num_tokens - 1)) / (one.decoding / tokens)
    return measured, formula


def against_assisted(
    model: Any, rows: RowForward, words: Any, ends: frozenset[int], prompts: Sequence[list[int]], *, layer: int, k: int, new: int
) -> list[float]:
    """Our seconds a token over those of transformers' assisted loop, both drafting with the target's first layers."""
    ours = Decoder(rows, words, ends, EarlyExitDrafter(rows, layer, Drawing()), k)
    model.generation_config.num_assistant_tokens, model.generation_config.num_assistant_tokens_schedule = k, "constant"
    model.generation_config.assistant_confidence_threshold = 0.0

    def theirs(ids: list[int]) -> int:
        with torch.inference_mode():
            out = model.generate(torch.tensor([ids]), max_new_tokens=new, do_sample=False, assistant_early_exit=layer)
        return int(out.shape[1]) - len(ids)

    def own(ids: list[int]) -> int:
        return run(ours, [ids], new, 0.0).num_tokens

    def seconds(of: Callable[[list[int]], int], ids: list[int]) -> float:
        start = perf_counter()
        tokens = of(ids)
        return (perf_counter() - start) / tokens

    own(prompts[0]), theirs(prompts[0])
    return [seconds(own, ids) / seconds(theirs, ids) for ids in prompts]
