"""What the engine costs on an accelerator: `python -m tests.bench.gpu`, under eight minutes on one GPU, small on a CPU.

Target and draft are random, the draft being the target's first layers, and the layers after those are damped so that it is often
right: every figure is a ratio of two loops over the same pair, and none says anything about a real model's acceptance.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from canary.domain.traffic import SamplingParams
from canary.engine.decode import Decoder
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.hooks import CLEAN
from canary.engine.requests import Job
from canary.engine.rows import Rows
from canary.engine.verify import verify, verify_greedy

GPU_BUDGET_SECONDS = 480.0
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
    "cuda": Size(2048, 16, 2, 32, 32_000, 151_936, 128, 256, (1, 8, 32), 5),
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


def loop(model: PreTrainedModel, rows: int, k: int, draft: PreTrainedModel | None = None) -> Decoder:
    """Our loop: k tokens of the draft model, or of n-grams without one, or none at all."""
    forward = RowForward(model, rows)
    if k == 0:
        return Decoder(forward, None, frozenset())  # type: ignore[arg-type]
    drafter = NgramDrafter(rows, 3) if draft is None else DraftModelDrafter(draft, rows)
    return Decoder(forward, None, frozenset(), drafter, k)  # type: ignore[arg-type]


def answered(loop: Decoder, asked: Sequence[Job], *, traced: bool = False) -> Callable[[], object]:
    """A run of all requests, to be timed."""
    return lambda: list(loop.run(asked, traced=traced))


def against_transformers(size: Size, dtype: torch.dtype, device: str) -> Iterator[Line]:
    """Our loop against `generate`, plain and assisted, batch 1, greedy, the same pair."""
    target, draft = pair(size, size.vocab, dtype, device)
    asked = prompts(size, 1, size.vocab)
    ids = torch.tensor(asked, device=device)
    plain, drafted = loop(target, 1, 0), loop(target, 1, 5, draft)
    draft.generation_config.num_assistant_tokens = 5
    draft.generation_config.num_assistant_tokens_schedule = "constant"

    def generate(**more: object) -> object:
        with torch.inference_mode():
            return target.generate(ids, max_new_tokens=size.new, do_sample=False, **more)  # type: ignore[operator]

    answers = jobs(asked, size.new)
    yield ratio("HF generate / ours, k = 0", generate, answered(plain, answers), size, device)
    yield ratio(
        "HF assisted / ours, same draft, k = 5", lambda: generate(assistant_model=draft), answered(drafted, answers), size, device
    )


def own_batches(size: Size, dtype: torch.dtype, device: str) -> Iterator[Line]:
    """k = 3 and 5 against k = 0, by batch, and the trace's cost."""
    target, draft = pair(size, size.vocab, dtype, device)
    for batch in size.batches:
        asked = jobs(prompts(size, batch, size.vocab), size.new, temperature=0.8)
        plain = answered(loop(target, batch, 0), asked)
        for k in (3, 5):
            drafted = loop(target, batch, k, draft)
            yield ratio(f"k = 0 / k = {k}, batch {batch}", plain, answered(drafted, asked), size, device)
        traced = answered(drafted, asked, traced=True)
        yield ratio(f"traced / untraced, k = 5, batch {batch}", traced, answered(drafted, asked), size, device)


def judged(logits: torch.Tensor, size: Size, temperature: float) -> Callable[[], object]:
    """One verification of given rows, [n, W, V], its outcome copied to the host."""
    batch, width, _ = logits.shape
    drafts = torch.zeros(batch, width - 1, dtype=torch.int64, device=logits.device)
    lengths = torch.full((batch,), width - 1, device=logits.device)
    uniforms = torch.rand(batch, width, device=logits.device)
    rows = Rows.of([SamplingParams(size.new, temperature=temperature)] * batch, width, logits.device)

    def sampled() -> object:
        probs = CLEAN.process(logits, rows, lengths)
        return verify(probs, drafts, lengths, None, uniforms[:, 1:], uniforms).num_accepted.tolist()

    return sampled if temperature else lambda: verify_greedy(logits, drafts, lengths).num_accepted.tolist()


@torch.inference_mode()
def verify_share(size: Size, dtype: torch.dtype, device: str) -> Iterator[Line]:
    """Everything after the target's forward, as a share of the forward, at a wide vocabulary and width 6."""
    target, _ = pair(size, size.wide_vocab, dtype, device)
    width = 6
    for batch in size.batches:
        forward = RowForward(target, batch)
        forward.cache.reserve(size.prompt + width)
        forward.lengths[:batch] = [size.prompt] * batch
        step = partial(forward.step, torch.zeros(batch, width, dtype=torch.int64, device=device))
        for name, temperature in (("sampled", 0.8), ("greedy", 0.0)):
            run = judged(step(), size, temperature)
            yield ratio(f"verify / forward, {name}, vocabulary {size.wide_vocab}, batch {batch}", run, step, size, device)


def exactness(size: Size, device: str) -> Iterator[Line]:
    """Share of greedy fp32 answers that equal `generate`'s token by token, k = 0 and k = 5."""
    torch.backends.cuda.matmul.allow_tf32 = False
    target, draft = pair(size, size.vocab, torch.float32, device)
    asked = prompts(size, max(size.batches), size.vocab, seed=1)
    with torch.inference_mode():
        wanted = [
            target.generate(torch.tensor([ids], device=device), max_new_tokens=size.new, do_sample=False)[0, len(ids) :].tolist()  # type: ignore[operator]
            for ids in asked[:8]
        ]
    for k in (0, 5):
        done = {r.job.index: r.token_ids for r in loop(target, len(wanted), k, draft).run(jobs(asked[: len(wanted)], size.new))}
        equal = statistics.mean(float(done[i] == ids) for i, ids in enumerate(wanted))
        yield Line(f"fp32 answers equal to generate, k = {k}", equal, equal, equal)


def row_noise(size: Size, dtype: torch.dtype, device: str) -> Iterator[Line]:
    """Total variation between the same rows computed alone and in a batch: what 16 bit adds without any drafter."""
    target, _ = pair(size, size.vocab, dtype, device)
    batch = max(size.batches)
    asked = prompts(size, batch, size.vocab, seed=2)
    alone, together = RowForward(target, 1), RowForward(target, batch)
    with torch.inference_mode():
        for row, ids in enumerate(asked):
            together.prefill(row, ids)
        rows = together.step(torch.tensor([[ids[0]] for ids in asked], device=device))[:, 0].float().softmax(-1)
        found = []
        for row, ids in enumerate(asked[:8]):
            alone.prefill(0, ids)
            own = alone.step(torch.tensor([[ids[0]]], device=device))[0, 0].float().softmax(-1)
            found.append(float((own - rows[row]).abs().sum() / 2))
    yield Line(f"mean total variation of A/A rows, batch 1 against {batch}", statistics.mean(found), min(found), max(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=sorted(SIZES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    size, dtype, started = SIZES[args.device], torch.bfloat16, perf_counter()
    parts: tuple[tuple[str, Callable[[], Iterator[Line]]], ...] = (
        ("transformers", lambda: against_transformers(size, dtype, args.device)),
        ("batches", lambda: own_batches(size, dtype, args.device)),
        ("verify", lambda: verify_share(size, dtype, args.device)),
        ("exactness", lambda: exactness(size, args.device)),
        ("noise", lambda: row_noise(size, dtype, args.device)),
    )
    found = []
    for name, part in parts:
        if perf_counter() - started > GPU_BUDGET_SECONDS:
            print(f"{name}: left out, the time is spent", file=sys.stderr)
            continue
        for line in part():
            found.append(line)
            if not args.json:
                print(f"{line.name:62}{line.value:10.4f}   [{line.low:.4f}, {line.high:.4f}]", flush=True)
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    if args.json:
        print(json.dumps({"device": where, "torch": torch.__version__, "lines": [asdict(line) for line in found]}, indent=1))
    else:
        print(f"{where}, torch {torch.__version__}, {dtype}, {perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
