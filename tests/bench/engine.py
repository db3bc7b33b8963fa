"""The engine's speed against itself and against transformers: `python -m tests.bench.engine`.

Every figure is a ratio within this run, of turns that were taken back to back, and names dtype and forward; only medians are
judged: a machine drifts by more than the bars between minutes. `--only PART` runs one part. A miss exits with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from canary.domain.traffic import SamplingParams
from canary.engine import checkpoints
from canary.engine.decode import Decoder
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import PLAIN
from canary.engine.requests import Job
from tests.bench import engine_parts
from tests.bench import engine_steps as steps
from tests.bench.engine_replay import replay
from tests.bench.engine_setup import FAST, HALF, MAX_NGRAM, ROUTES, ROWS, SINGLE, Bar, Figure, K, Setup

DRAWS = 5  # of mixed lengths
Variant = Callable[[Sequence[int]], list[int]]


@dataclass(frozen=True, slots=True)
class Timed:
    """One prompt under every variant: seconds per token, and the text of k = 0."""

    per_token: dict[str, float]
    prompt: list[int]
    text: list[int]


def variants(setup: Setup) -> dict[str, Variant]:
    """What is timed request by request: each takes a prompt's tokens and returns the answer's."""
    model = setup.model(HALF)
    ends = checkpoints.eos_ids(model, setup.words)

    def own(ids: Sequence[int], loop: Decoder) -> list[int]:
        (done,) = loop.run([Job(0, tuple(ids), SamplingParams(setup.new, temperature=0.0), (0, 0))])
        return done.token_ids

    def theirs(ids: Sequence[int], **more: int) -> list[int]:
        with torch.inference_mode():
            out = model.generate(torch.tensor([list(ids)]), max_new_tokens=setup.new, do_sample=False, **more)  # type: ignore[operator]
        tokens: list[int] = out[0, len(ids) :].tolist()
        return tokens

    found: dict[str, Variant] = {"generate": theirs, "lookup": partial(theirs, prompt_lookup_num_tokens=K)}
    for forward in (PLAIN, FAST):
        rows = setup.rows(HALF, forward)
        found[f"k0 {forward}"] = partial(own, loop=Decoder(rows, setup.words, ends))
        found[f"ngram {forward}"] = partial(own, loop=Decoder(rows, setup.words, ends, NgramDrafter(ROWS, MAX_NGRAM), K))
    rows = setup.rows(SINGLE, FAST)
    found["k0 fp32"] = partial(own, loop=Decoder(rows, setup.words, ends))
    found["ngram fp32"] = partial(own, loop=Decoder(rows, setup.words, ends, NgramDrafter(ROWS, MAX_NGRAM), K))
    return found


def time_all(runs: dict[str, Variant], prompts: Sequence[list[int]], rng: random.Random, told: str) -> list[Timed]:
    """Every variant on every prompt, interleaved."""
    measured = []
    for at, prompt in enumerate(prompts):
        order, per_token, text = list(runs), {}, []
        rng.shuffle(order)
        for name in order:
            start = perf_counter()
            answer = runs[name](prompt)
            per_token[name] = (perf_counter() - start) / len(answer)
            if name == f"k0 {FAST}":
                text = answer
        measured.append(Timed(per_token, prompt, text))
        print(f"{told}: {at + 1} of {len(prompts)}", file=sys.stderr, flush=True)
    return measured


def requests(setup: Setup) -> Iterator[Figure]:
    """Whole requests one by one, prefill included."""
    runs = variants(setup)
    time_all(runs, setup.tokens(ROUTES[0], 1), setup.rng, "warming up")  # caches and allocator
    for route in ROUTES:
        measured = time_all(runs, setup.tokens(route, setup.prompts), setup.rng, route)

        def ratio(faster: str, slower: str, measured: Sequence[Timed] = measured) -> tuple[float, ...]:
            return tuple(m.per_token[slower] / m.per_token[faster] for m in measured)

        copying = route in ("math", "rag")
        for forward in (PLAIN, FAST):
            bar = Bar(1.5, 2.0) if forward == FAST else Bar(0.97, 1.15)
            yield Figure("k0 / generate", route, HALF, forward, ratio(f"k0 {forward}", "generate"), bar)
            yield Figure("ngram / k0", route, HALF, forward, ratio(f"ngram {forward}", f"k0 {forward}"))
        yield Figure("ngram / lookup", route, HALF, FAST, ratio(f"ngram {FAST}", "lookup"), Bar(1.3, 1.6))
        math = Bar(1.15, 1.3) if route == "math" else None
        yield Figure("ngram / k0", route, SINGLE, FAST, ratio("ngram fp32", "k0 fp32"), math)
        yield Figure("k0 fp32 / k0 16 bit", route, SINGLE, FAST, ratio("k0 fp32", f"k0 {FAST}"))
        if copying:
            yield Figure(
                "replay / lookup",
                route,
                HALF,
                FAST,
                (replay([(m.prompt, m.text) for m in measured], K, MAX_NGRAM),),
                Bar(0.97, 1.0),
            )


def step(setup: Setup) -> Iterator[Figure]:
    """One target step against one of transformers' own forward and cache; a share, so that less is better."""
    for dtype in (SINGLE, HALF):
        bar = Bar(0.65, 0.55, most=True) if dtype == SINGLE else None
        for batch in (1, ROWS):
            shares = steps.weights_alone(setup.model(dtype), setup.rows(dtype, FAST), batch, setup.prompts)
            yield Figure("weights / transformers", f"b{batch} w1", dtype, "none", tuple(shares))
        for forward in (PLAIN, FAST):
            for batch in (1, ROWS):
                values = steps.against_transformers(setup.model(dtype), setup.rows(dtype, forward), batch, 3 * setup.prompts)
                yield Figure(
                    "step / transformers", f"b{batch} w1", dtype, forward, tuple(values), bar if forward == FAST else None
                )


def curve(setup: Setup) -> Iterator[Figure]:
    """What a verification costs by its width."""
    for dtype in (SINGLE, HALF):
        for forward in (PLAIN, FAST):
            for batch in (1, ROWS):
                found = steps.curve(setup.rows(dtype, forward), batch, setup.prompts)
                for width in steps.WIDTHS[1:]:
                    judged = (dtype, forward, batch, width) == (HALF, FAST, 1, 5)
                    bar = Bar(1.3, 1.2, most=True) if judged else None
                    yield Figure("width / width 1", f"b{batch} w{width}", dtype, forward, tuple(found[width]), bar)


def outside(setup: Setup) -> Iterator[Figure]:
    """Share of decoding that is not the forward."""
    prompts = [p[:128] for p in setup.tokens("math", ROWS)]
    for dtype in (SINGLE, HALF):
        for batch in (1, ROWS):
            for k in (0, K):
                shares = steps.outside(setup.rows(dtype, FAST), setup.words, prompts[:batch], k, setup.new, 3)
                yield Figure("outside the forward", f"b{batch} w{k + 1}", dtype, FAST, tuple(shares), Bar(0.06, 0.04, most=True))


def batches(setup: Setup) -> Iterator[Figure]:
    """Useful tokens a second of mixed lengths: our rows against transformers' left-padded batches, both of eight.

    How much padding wastes hangs on the lengths that were drawn, so they are drawn a few times.
    """
    count = min(48, 4 * setup.prompts)
    ratios: dict[str, list[float]] = {PLAIN: [], FAST: []}
    for _ in range(DRAWS):
        texts = [p for route in ROUTES for p in setup.tokens(route, -(-count // len(ROUTES)))][:count]
        setup.rng.shuffle(texts)
        jobs = [Job(i, tuple(p), SamplingParams(setup.rng.randint(16, 96), temperature=0.0), (i, 0)) for i, p in enumerate(texts)]
        theirs = steps.padded_seconds(setup.model(HALF), jobs, ROWS)
        for forward, found in ratios.items():
            found.append(theirs / steps.continuous_seconds(setup.rows(HALF, forward), setup.words, jobs))
    for forward, bar in ((PLAIN, Bar(1.8, 2.2)), (FAST, Bar(2.4, 2.8))):
        yield Figure("rows / padded batches", f"{count} requests", HALF, forward, tuple(ratios[forward]), bar)


PARTS: Mapping[str, Callable[[Setup], Iterator[Figure]]] = {
    "step": step,
    "curve": curve,
    "outside": outside,
    "requests": requests,
    "batches": batches,
    "adaptive": engine_parts.adaptive,
    "together": engine_parts.together,
    "assisted": engine_parts.assisted,
    "copying": engine_parts.copying,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--cache", type=Path, default=Path(".canary") / "models")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part to run; may be given again")
    parser.add_argument("--prompts", type=int, default=12, help="prompts per route, and rounds of single steps")
    parser.add_argument("--new", type=int, default=64, help="most new tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the figures are written as well")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    path = checkpoints.prepare(args.model, args.cache)
    setup = Setup(path, args.prompts, args.new, random.Random(args.seed))
    figures = []
    print(f"{'figure':24}{'of':14}{'dtype':10}{'fwd':7}{'median':>8}{'lowest':>8}{'highest':>8}{'must':>7}{'stretch':>7}")
    for part in args.only or PARTS:
        for figure in PARTS[part](setup):
            figures.append(figure)
            print(figure.line(), flush=True)
    if args.json is not None:
        told = [asdict(f) | {"median": f.median, "verdict": f.verdict} for f in figures]
        args.json.write_text(json.dumps({"torch": torch.__version__, "threads": args.threads, "figures": told}, indent=1))
    return 1 if any(f.verdict == "MISS" for f in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
