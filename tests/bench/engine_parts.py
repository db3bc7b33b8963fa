"""The parts of `tests.bench.engine` that are about loops: adaptive k, the cost formula, transformers' assisted loop, copying."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from canary.engine import checkpoints
from tests.bench import engine_loops as loops
from tests.bench import engine_steps as steps
from tests.bench.engine_setup import FAST, HALF, MAX_NGRAM, ROUTES, ROWS, Bar, Figure, K, Setup

TEMPERATURES: Mapping[str, float] = {"greedy": 0.0, "sampled": 0.7}
ALONE = {"greedy": Bar(0.97, 1.0), "sampled": Bar(0.95, 1.0)}
COPIED = 8  # k of the copying prompt


def _loops(setup: Setup, ends: frozenset[int]) -> dict[str, Any]:
    rows = setup.rows(HALF, FAST)
    return {
        "k0": loops.plain(rows, setup.words, ends),
        "adaptive": loops.adaptive(rows, setup.words, ends, K, MAX_NGRAM),
        "ngram": loops.fixed(rows, setup.words, ends, K, MAX_NGRAM),
    }


def _ends(setup: Setup) -> frozenset[int]:
    return checkpoints.eos_ids(setup.model(HALF), setup.words)


def adaptive(setup: Setup) -> Iterator[Figure]:
    """Adaptive k against none, request by request; and what a fixed k gained against the formula of its accept counts."""
    made = _loops(setup, _ends(setup))
    costs = {w: statistics.median(v) for w, v in steps.curve(setup.rows(HALF, FAST), 1, setup.prompts).items() if w <= K + 1}
    for how, temperature in TEMPERATURES.items():
        for route in ROUTES:
            asked = [[ids] for ids in setup.tokens(route, setup.prompts)]
            found = loops.turns(made, asked, setup.new, temperature, setup.rng)
            print(f"{route} {how}: {len(found)} requests", file=sys.stderr, flush=True)
            ratios = tuple(loops.per_token(runs, "adaptive", "k0") for runs in found)
            bar = Bar(1.3, 1.3) if (route, how) == ("math", "greedy") else ALONE[how]
            yield Figure(f"adaptive / k0, {how}", route, HALF, FAST, ratios, bar)
            if how == "greedy":
                pooled = [loops.of_formula(runs, "ngram", "k0", costs) for runs in found if runs["ngram"].num_tokens > 8]
                share = statistics.fmean(m for m, _ in pooled) / statistics.fmean(f for _, f in pooled)
                yield Figure("measured / formula", route, HALF, FAST, (share,), Bar(0.90, 0.93))


def together(setup: Setup) -> Iterator[Figure]:
    """Adaptive k against none, eight requests together."""
    made = _loops(setup, _ends(setup))
    for route in ROUTES:
        prompts = setup.tokens(route, ROWS * max(2, setup.prompts // 4))
        asked = [prompts[at : at + ROWS] for at in range(0, len(prompts), ROWS)]
        found = loops.turns(made, asked, setup.new, 0.0, setup.rng)
        print(f"{route}: {len(found)} groups of {ROWS}", file=sys.stderr, flush=True)
        bar = Bar(1.05, 1.05) if route == "rag" else Bar(0.95, 1.0)
        for name in ("adaptive", "ngram"):
            ratios = tuple(loops.per_token(runs, name, "k0") for runs in found)
            yield Figure(f"{name} / k0, batch {ROWS}", route, HALF, FAST, ratios, bar if name == "adaptive" else None)


def assisted(setup: Setup) -> Iterator[Figure]:
    """Our time over transformers' assisted loop with the same early exit."""
    prompts = setup.tokens("math", max(3, setup.prompts // 3))
    rows, model = setup.rows(HALF, FAST), setup.model(HALF)
    ratios = loops.against_assisted(model, rows, setup.words, _ends(setup), prompts, layer=24, k=3, new=setup.new)
    yield Figure("ours / HF assisted", "math", HALF, FAST, tuple(ratios), Bar(0.87, 0.7, most=True))


def copying(setup: Setup) -> Iterator[Figure]:
    """A prompt whose continuation is there already: a list said three times and begun once more."""
    lines = "".join(f"{i}. The {word} is number {i}.\n" for i, word in enumerate(_WORDS, start=1))
    ids: list[int] = setup.words(lines * 3 + lines[:40], add_special_tokens=False)["input_ids"]
    rows = setup.rows(HALF, FAST)
    made = {
        "k0": loops.plain(rows, setup.words, frozenset()),
        "ngram": loops.fixed(rows, setup.words, frozenset(), COPIED, MAX_NGRAM),
        "adaptive": loops.adaptive(rows, setup.words, frozenset(), COPIED, MAX_NGRAM),
    }
    found = loops.turns(made, [[ids]] * max(3, setup.prompts // 3), setup.new, 0.0, setup.rng)
    for name in ("ngram", "adaptive"):
        ratios = tuple(loops.per_token(runs, name, "k0") for runs in found)
        yield Figure(f"{name} / k0, copying", f"k {COPIED}", HALF, FAST, ratios, Bar(1.5, 3.0) if name == "ngram" else None)


_WORDS: Sequence[str] = ("apple", "river", "stone", "cloud", "table", "green", "paper", "light", "house", "music", "sugar")
