"""What `tests.bench.gpu` measures with: a random pair, loops over it, and the ratio of two runs in turns."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from canary.domain.traffic import SamplingParams
from canary.engine.adaptive import AdaptiveK, CostTable
from canary.engine.decode import Decoder
from canary.engine.drafters.adaptive import AdaptiveDrafter
from canary.engine.drafters.base import Drafter
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.graphs import OFF
from canary.engine.hooks import CLEAN, of_verification
from canary.engine.probe import draft_costs, verify_costs
from canary.engine.requests import Job

DAMPED = 0.05  # what is left of the later layers, so that a draft of the first ones often agrees


@dataclass(frozen=True)
class Size:
    """How much is run.

    Args:
        repeats: interleaved rounds of each comparison.
    """

    hidden: int
    layers: int
    draft_layers: int
    heads: int
    vocab: int
    wide_vocab: int
    new: int
    prompt: int
    batches: tuple[int, ...]
    repeats: int


SIZES = {
    "cuda": Size(2048, 16, 2, 32, 32_000, 151_936, 128, 256, (1, 8, 32), 4),
    "cpu": Size(128, 4, 1, 4, 1_000, 8_000, 24, 32, (1, 4), 5),
}


@dataclass(frozen=True)
class Line:
    """One figure: `value` is a ratio or share unless the name says otherwise; low and high are of the single rounds."""

    name: str
    value: float
    low: float
    high: float


def pair(size: Size, vocab: int, dtype: torch.dtype, device: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Target and draft."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": vocab,
        "hidden_size": size.hidden,
        "intermediate_size": 3 * size.hidden,
        "num_attention_heads": size.heads,
        "num_key_value_heads": max(1, size.heads // 4),
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "eos_token_id": None,
    }
    with torch.device(device):
        target = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=size.layers)).to(dtype).eval()
        draft = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=size.draft_layers)).to(dtype).eval()
    with torch.no_grad():
        for layer in target.model.layers[size.draft_layers :]:
            layer.self_attn.o_proj.weight.mul_(DAMPED)
            layer.mlp.down_proj.weight.mul_(DAMPED)
    draft.load_state_dict({k: v for k, v in target.state_dict().items() if k in draft.state_dict()})
    for model in (target, draft):
        model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return target, draft


def prompts(size: Size, count: int, vocab: int, seed: int = 0) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(3, vocab) for _ in range(size.prompt)) for _ in range(count)]


def seconds(run: Callable[[], object], device: str) -> float:
    """Of one call, the device's queue emptied before and after."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - start


def ratio(name: str, over: Callable[[], object], under: Callable[[], object], size: Size, device: str) -> Line:
    """Time of `over` by time of `under`, in pairs after one warm round."""
    over(), under()
    found = []
    for turn in range(size.repeats):
        times = {}
        for which in ((over, under), (under, over))[turn % 2]:
            times[which] = seconds(which, device)
        found.append(times[over] / times[under])
    return Line(name, statistics.median(found), min(found), max(found))


def jobs(asked: Sequence[tuple[int, ...]], new: int, temperature: float = 0.0) -> list[Job]:
    return [Job(i, ids, SamplingParams(new, temperature=temperature), (1, i)) for i, ids in enumerate(asked)]


def loop(
    model: PreTrainedModel,
    rows: int,
    k: int,
    draft: PreTrainedModel | None = None,
    *,
    adapts: bool = False,
    graphs: str = OFF,
) -> Decoder:
    """Our loop: k tokens of the draft model, or of n-grams without one, or none at all; adaptive k, and steps captured."""
    forward = RowForward(model, rows, graphs=graphs)
    if k == 0:
        return Decoder(forward, None, frozenset())  # type: ignore[arg-type]
    drafter: Drafter = NgramDrafter(rows, 3) if draft is None else DraftModelDrafter(draft, rows)
    hooks = CLEAN
    if adapts:
        costs = CostTable.of(verify_costs(forward, repeats=3), {} if draft is None else draft_costs(drafter, forward, k))
        drafter = AdaptiveDrafter(drafter, AdaptiveK(costs, k, rows))
        hooks = of_verification("token", drafter.kind)
    return Decoder(forward, None, frozenset(), drafter, k, hooks=hooks, pads=not adapts)  # type: ignore[arg-type]


def answered(loop: Decoder, asked: Sequence[Job], *, traced: bool = False) -> Callable[[], object]:
    """A run of all requests, to be timed."""
    return lambda: list(loop.run(asked, traced=traced))
