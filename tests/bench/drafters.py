"""What each drafter costs and brings, on one target: `python -m tests.bench.drafters`.

Batch 1, greedy, untraced, the demo's prompts, prefill included. All drafters run on each prompt back to back in random order, and
only ratios of one prompt are reported: acceptance, tokens per target step, time per token over k = 0, and the drafter's own time
over the target's. Heads are untrained (their cost is real, their acceptance says nothing), and the draft model with `--draft` may
live on another device.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import PreTrainedModel

from canary.domain.traffic import SamplingParams
from canary.engine import checkpoints
from canary.engine.decode import Decoder
from canary.engine.drafters.base import Drafter, Proposal, Round
from canary.engine.drafters.composite import CompositeDrafter
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.early_exit import EarlyExitDrafter
from canary.engine.drafters.heads import HeadsDrafter, make_heads
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.drafters.transfers import Transfers
from canary.engine.faults.drafting import Faulty
from canary.engine.forward import RowForward
from canary.engine.packed import Packer
from canary.engine.requests import Job, Words

PROMPTS = Path(__file__).parents[2] / "canary" / "cli" / "demo" / "prompts"
MAX_NGRAM = 3


class Clocked(Faulty):
    """Any drafter, with the seconds that it takes beside the target."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.seconds = 0.0

    def begin(self, row: int, token_ids: Sequence[int], max_length: int) -> None:
        start = perf_counter()
        self.drafter.begin(row, token_ids, max_length)
        self.seconds += perf_counter() - start

    def propose(self, asked: Round) -> Proposal:
        start = perf_counter()
        proposal = self.drafter.propose(asked)
        self.seconds += perf_counter() - start
        return proposal


@dataclass
class Seen:
    """One drafter over all prompts."""

    speed: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    steps: int = 0


def untrained_heads(model: PreTrainedModel, count: int) -> torch.nn.ModuleList:
    """Heads of the right size on the target's own last layer."""
    heads = make_heads(count, 1, model.config.hidden_size, model.config.vocab_size).to(model.dtype)
    with torch.no_grad():
        for head in heads:
            head[1].weight.copy_(model.get_output_embeddings().weight)
    Packer().replace(heads)
    return heads.eval()


def drafters(model: PreTrainedModel, rows: RowForward, args: argparse.Namespace) -> tuple[dict[str, Drafter], Transfers | None]:
    """What is compared."""
    made: dict[str, Drafter] = {"ngram": NgramDrafter(1, MAX_NGRAM), "heads": HeadsDrafter(rows, untrained_heads(model, args.k))}
    for layer in args.layers:
        made[f"early_exit {layer}"] = EarlyExitDrafter(rows, layer)
        own = copy.deepcopy(model)
        own.base_model.layers = own.base_model.layers[:layer]  # type: ignore[union-attr]
        own.config.num_hidden_layers = layer
        made[f"own cache {layer}"] = DraftModelDrafter(own, 1)
    made["composite"] = CompositeDrafter(NgramDrafter(1, MAX_NGRAM), EarlyExitDrafter(rows, args.layers[-1]), 1, rows.vocab_size)
    if args.draft is None:
        return made, None
    draft, _ = checkpoints.load(checkpoints.prepare(args.draft, args.cache), args.dtype)
    device = torch.device(args.device)
    transfers = Transfers(rows.device, device, apart=True)
    made["draft_model"] = DraftModelDrafter(draft.to(device), 1, transfers=transfers)
    return made, transfers


def run(loop: Decoder, ids: Sequence[int], new: int) -> tuple[float, list[int], list[int], list[int]]:
    """Seconds, tokens, and what was drafted and accepted step by step."""
    start = perf_counter()
    (done,) = loop.run([Job(0, tuple(ids), SamplingParams(new, temperature=0.0), (0, 0))])
    return perf_counter() - start, done.token_ids, done.drafted, done.accepted


def prompts(words: Words, route: str, count: int, rng: random.Random) -> list[list[int]]:
    """Token ids of a route's chats."""
    lines = (PROMPTS / f"{route}.jsonl").read_text().splitlines()
    chats = [json.loads(line)["messages"] for line in rng.sample(lines, min(count, len(lines)))]
    texts = [words.apply_chat_template(c, add_generation_prompt=True, tokenize=False) for c in chats]
    return [words(t, add_special_tokens=False)["input_ids"] for t in texts]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--draft", help="a draft model's name or directory")
    parser.add_argument("--device", default="cpu", help="where the draft model runs")
    parser.add_argument("--cache", type=Path, default=Path(".canary") / "models")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", type=int, default=3, help="prompts per route")
    parser.add_argument("--new", type=int, default=32, help="most new tokens")
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--layers", type=int, nargs="+", default=[8, 24], help="exit layers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--routes", nargs="+", default=["math", "faq"])
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    rng = random.Random(0)
    model, words = checkpoints.load(checkpoints.prepare(args.model, args.cache), args.dtype)
    rows, ends = RowForward(model, 1), checkpoints.eos_ids(model, words)
    made, transfers = drafters(model, rows, args)
    loops = {"k0": Decoder(rows, words, ends)}
    clocks = {name: Clocked(drafter) for name, drafter in made.items()}
    loops |= {name: Decoder(rows, words, ends, clock, args.k) for name, clock in clocks.items()}
    print(f"{args.model}, {args.dtype}, forward {rows.forward}, {args.threads} threads, k = {args.k}")
    print(f"{'route':8}{'drafter':15}{'accepted':>9}{'per step':>10}{'draft share':>13}{'speed over k = 0':>18}")
    for route in args.routes:
        texts = prompts(words, route, args.prompts, rng)
        seen = {name: Seen() for name in clocks}
        for turn, ids in enumerate([texts[0], *texts]):
            order = list(loops)
            rng.shuffle(order)
            per_token: dict[str, float] = {}
            for name in order:
                if name in clocks:
                    clocks[name].seconds = 0.0
                seconds, tokens, drafted, accepted = run(loops[name], ids, args.new)
                per_token[name] = seconds / len(tokens)
                if turn == 0 or name == "k0":  # the first turn warms caches and allocator
                    continue
                mine = seen[name]
                mine.share.append(clocks[name].seconds / seconds)
                mine.drafted, mine.accepted = mine.drafted + sum(drafted), mine.accepted + sum(accepted)
                mine.tokens, mine.steps = mine.tokens + len(tokens) - 1, mine.steps + len(drafted) - 1
            for name in seen if turn else ():
                seen[name].speed.append(per_token["k0"] / per_token[name])
        for name, mine in seen.items():
            rate = mine.accepted / max(mine.drafted, 1)
            share, speed = statistics.median(mine.share), statistics.median(mine.speed)
            print(f"{route:8}{name:15}{rate:9.2f}{mine.tokens / mine.steps:10.2f}{share:13.2f}{speed:18.2f}", flush=True)
    if transfers is not None:
        print("to and from the draft model, a step:", {name: round(count) for name, count in transfers.per_round().items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
