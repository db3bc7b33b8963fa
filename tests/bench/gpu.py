"""What the engine costs on an accelerator: `python -m tests.bench.gpu`, under eight minutes on one GPU, small on a CPU.

Target and draft are random, the draft being the target's first layers, and the layers after those are damped so that it is often
right: every figure is a ratio of two loops over the same pair, and none says anything about a real model's acceptance.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from time import perf_counter

import torch
from torch.profiler import ProfilerActivity, profile

from canary.domain.traffic import SamplingParams
from canary.engine.forward import RowForward
from canary.engine.graphs import CUDA_GRAPHS, OFF
from canary.engine.hooks import CLEAN
from canary.engine.rows import Rows
from canary.engine.transfer import to_host
from canary.engine.verify import verify, verify_greedy
from tests.bench.gpu_pair import SIZES, Line, Size, answered, jobs, loop, pair, prompts, ratio

GPU_BUDGET_SECONDS = 480.0


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
        adapted = answered(loop(target, batch, 5, draft, adapts=True), asked)
        yield ratio(f"k = 0 / adaptive, batch {batch}", plain, adapted, size, device)
        traced = answered(drafted, asked, traced=True)
        yield ratio(f"traced / untraced, k = 5, batch {batch}", traced, answered(drafted, asked), size, device)


def copying(size: Size, dtype: torch.dtype, device: str) -> Iterator[Line]:
    """n-grams over a text that repeats itself, fixed and adaptive k, against k = 0."""
    target, _ = pair(size, size.vocab, dtype, device)
    for batch in size.batches:
        period = prompts(size, batch, size.vocab, seed=3)
        asked = jobs([(ids[:8] * size.prompt)[: size.prompt] for ids in period], size.new)
        plain = answered(loop(target, batch, 0), asked)
        for name, adapts in (("k = 4", False), ("adaptive", True)):
            drafted = answered(loop(target, batch, 4, adapts=adapts), asked)
            yield ratio(f"k = 0 / n-gram, {name}, a repeating prompt, batch {batch}", plain, drafted, size, device)


def captured(size: Size, dtype: torch.dtype, device: str) -> Iterator[Line]:
    """Captured steps against steps run anew; the first run, which captures, is not timed. On a GPU alone."""
    if device != "cuda":
        return
    target, draft = pair(size, size.vocab, dtype, device)
    for batch in size.batches:
        asked = jobs(prompts(size, batch, size.vocab), size.new)
        for k in (0, 5):
            anew, graphs = (loop(target, batch, k, draft, graphs=mode) for mode in (OFF, CUDA_GRAPHS))
            yield ratio(
                f"anew / CUDA graphs, k = {k}, batch {batch}", answered(anew, asked), answered(graphs, asked), size, device
            )
            made = graphs.target.graphs
            if made is None or made.note is not None:
                print(f"graphs, k = {k}, batch {batch}: {made and made.note}", file=sys.stderr)


def waits(size: Size, dtype: torch.dtype, device: str) -> Iterator[Line]:
    """Waits for the device per step, as the driver is asked for them. On a GPU alone; a CPU has none."""
    if device != "cuda":
        return
    target, draft = pair(size, size.vocab, dtype, device)
    asked = jobs(prompts(size, 4, size.vocab), size.new, temperature=0.8)
    for name, drafter, k in (("k = 0", None, 0), ("n-gram", None, 4), ("draft model", draft, 4)):
        run = loop(target, 4, k, drafter)
        answered(run, asked)()
        steps: list[int] = []
        step = run.target.step
        run.target.step = lambda tokens, step=step, steps=steps: steps.append(0) or step(tokens)  # type: ignore[method-assign]
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            answered(run, asked)()
        synced = sum(e.count for e in found.key_averages() if e.key in ("cudaStreamSynchronize", "cudaEventSynchronize"))
        value = (synced - len(asked)) / len(steps)  # one each after the prefills
        yield Line(f"waits a step, {name}, batch 4", value, value, value)


def judged(logits: torch.Tensor, size: Size, temperature: float) -> Callable[[], object]:
    """One verification of given rows, [n, W, V], its outcome copied to the host."""
    batch, width, _ = logits.shape
    drafts = torch.zeros(batch, width - 1, dtype=torch.int64, device=logits.device)
    lengths = torch.full((batch,), width - 1, device=logits.device)
    uniforms = torch.rand(batch, width, device=logits.device)
    rows = Rows.of([SamplingParams(size.new, temperature=temperature)] * batch, width, logits.device)

    def sampled() -> object:
        probs = CLEAN.process(logits, rows, lengths)
        return to_host(verify(probs, drafts, lengths, None, uniforms[:, 1:], uniforms).num_accepted)

    return sampled if temperature else lambda: to_host(verify_greedy(logits, drafts, lengths).num_accepted)


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
        ("verify", lambda: verify_share(size, dtype, args.device)),
        ("exactness", lambda: exactness(size, args.device)),
        ("noise", lambda: row_noise(size, dtype, args.device)),
        ("waits", lambda: waits(size, dtype, args.device)),
        ("batches", lambda: own_batches(size, dtype, args.device)),
        ("captured", lambda: captured(size, dtype, args.device)),
        ("copying", lambda: copying(size, dtype, args.device)),
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
            if perf_counter() - started > GPU_BUDGET_SECONDS:
                print(f"{name}: cut short, the time is spent", file=sys.stderr)
                break
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    if args.json:
        print(json.dumps({"device": where, "torch": torch.__version__, "lines": [asdict(line) for line in found]}, indent=1))
    else:
        print(f"{where}, torch {torch.__version__}, {dtype}, {perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
