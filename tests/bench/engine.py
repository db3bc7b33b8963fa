"""The engine's speed against itself and against transformers: `python -m tests.bench.engine`.

bf16, batch 1, greedy, untraced, the demo's prompts, prefill included. Variants of one prompt run back to back in random order and
only medians of their ratios are judged: a machine drifts by more than the bars between minutes. A miss exits with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from canary.domain.traffic import SamplingParams
from canary.engine import checkpoints
from canary.engine.decode import Decoder
from canary.engine.drafters.ngram import History, NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.requests import Job

PROMPTS = Path(__file__).parents[2] / "canary" / "cli" / "demo" / "prompts"
K = 4
MAX_NGRAM = 3
# (route, figure) -> smallest median
BARS = {
    ("math", "ngram / k0"): 1.3,
    ("rag", "ngram / k0"): 1.1,
    ("math", "k0 / generate"): 0.97,
    ("rag", "k0 / generate"): 0.97,
    ("math", "replay / lookup"): 0.97,
    ("rag", "replay / lookup"): 0.97,
}

Variant = Callable[[Sequence[int]], list[int]]


@dataclass(frozen=True, slots=True)
class Timed:
    """One prompt under every variant: seconds per token, and the text of k = 0."""

    per_token: dict[str, float]
    prompt: list[int]
    text: list[int]


def variants(model: PreTrainedModel, words: object, ends: frozenset[int], new: int) -> dict[str, Variant]:
    """What is timed: each takes a prompt's tokens and returns the answer's."""
    rows = RowForward(model, 1)
    plain = Decoder(rows, words, ends)  # type: ignore[arg-type]
    copying = Decoder(rows, words, ends, NgramDrafter(1, MAX_NGRAM), K)  # type: ignore[arg-type]

    def own(loop: Decoder) -> Variant:
        def run(ids: Sequence[int]) -> list[int]:
            (done,) = loop.run([Job(0, tuple(ids), SamplingParams(new, temperature=0.0), (0, 0))])
            return done.token_ids

        return run

    def generate(ids: Sequence[int]) -> list[int]:
        with torch.inference_mode():
            out = model.generate(torch.tensor([list(ids)]), max_new_tokens=new, do_sample=False)  # type: ignore[operator]
        tokens: list[int] = out[0, len(ids) :].tolist()
        return tokens

    return {"k0": own(plain), "ngram": own(copying), "generate": generate}


def time_all(runs: dict[str, Variant], prompts: Sequence[list[int]], rng: random.Random) -> list[Timed]:
    """Every variant on every prompt, interleaved."""
    measured = []
    for prompt in prompts:
        order, per_token, text = list(runs), {}, []
        rng.shuffle(order)
        for name in order:
            start = perf_counter()
            answer = runs[name](prompt)
            per_token[name] = (perf_counter() - start) / len(answer)
            if name == "k0":
                text = answer
        measured.append(Timed(per_token, prompt, text))
    return measured


def forwards(prompt: list[int], text: list[int], draft: Callable[[list[int]], list[int]]) -> int:
    """Target forwards after the prefill that a drafter needs for a given text."""
    at, count = 1, 0
    while at < len(text):
        accepted = 0
        for proposed, token in zip(draft(prompt + text[:at]), text[at:-1], strict=False):
            if proposed != token:
                break
            accepted += 1
        at, count = at + accepted + 1, count + 1
    return count


def replay(measured: Sequence[Timed]) -> float:
    """Tokens per forward of our drafter over those of transformers' prompt lookup, on the same texts."""

    def ours(ids: list[int]) -> list[int]:
        history = History(MAX_NGRAM)
        history.extend(ids)
        return history.draft(K)

    lookup = PromptLookupCandidateGenerator(num_output_tokens=K, max_length=100_000)

    def theirs(ids: list[int]) -> list[int]:
        found: list[int] = lookup.get_candidates(torch.LongTensor([ids]))[0][0, len(ids) :].tolist()
        return found

    mine, other = (sum(forwards(m.prompt, m.text, draft) for m in measured) for draft in (ours, theirs))
    return other / mine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--cache", type=Path, default=Path(".canary") / "models")
    parser.add_argument("--prompts", type=int, default=20, help="prompts per route")
    parser.add_argument("--new", type=int, default=64, help="most new tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--routes", nargs="+", default=["math", "rag"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    rng = random.Random(args.seed)
    model, words = checkpoints.load(checkpoints.prepare(args.model, args.cache), "bfloat16")
    runs = variants(model, words, checkpoints.eos_ids(model, words), args.new)
    missed = 0
    print(f"{'route':10}{'figure':18}{'median':>8}{'lowest':>8}{'highest':>9}{'bar':>7}")
    for route in args.routes:
        lines = (PROMPTS / f"{route}.jsonl").read_text().splitlines()
        chats = [json.loads(line)["messages"] for line in rng.sample(lines, min(args.prompts, len(lines)))]
        texts = [words.apply_chat_template(c, add_generation_prompt=True, tokenize=False) for c in chats]
        prompts = [words(t, add_special_tokens=False)["input_ids"] for t in texts]
        time_all(runs, prompts[:1], rng)  # warm caches and allocator
        measured = time_all(runs, prompts, rng)
        share = replay(measured)
        figures = {
            "ngram / k0": [m.per_token["k0"] / m.per_token["ngram"] for m in measured],
            "k0 / generate": [m.per_token["generate"] / m.per_token["k0"] for m in measured],
            "replay / lookup": [share],
        }
        for name, values in figures.items():
            bar, median = BARS.get((route, name)), statistics.median(values)
            verdict = "" if bar is None else f"{bar:7.2f}  {'ok' if median >= bar else 'MISS'}"
            missed += bar is not None and median < bar
            print(f"{route:10}{name:18}{median:8.2f}{min(values):8.2f}{max(values):9.2f}{verdict}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
