"""What a loop did, counted: target forwards, reads of the device between them, and the tensors that are alive."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import PreTrainedModel

from canary.engine.adaptive import AdaptiveK, CostTable
from canary.engine.decode import Decoder
from canary.engine.drafters.adaptive import AdaptiveDrafter
from canary.engine.drafters.base import Drafter
from canary.engine.drafters.composite import CompositeDrafter
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.early_exit import EarlyExitDrafter
from canary.engine.drafters.heads import HeadsDrafter
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.requests import Job, Running
from tests.engine.tiny import noisy_copy, run_all, tiny_heads, tiny_model

# Operators after which the host needs a number from the device: on an accelerator each of them waits for it.
READS = frozenset({
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal",
    "aten::repeat_interleave", "read",
})  # fmt: skip
FORWARD = "forward"
DEAR = CostTable({(n, w): 10.0 * w for n in (1, 8) for w in (1, 2, 3, 5)})  # no draft is worth its step


@contextmanager
def forwards(loop: Decoder) -> Iterator[list[tuple[int, int]]]:
    """Rows and width of every target forward meanwhile; a prefill has no width (0)."""
    target, seen = loop.target, []
    prefill, together, step = target.prefill, target.prefill_all, target.step

    def prefilled(row: int, token_ids: Sequence[int]) -> torch.Tensor:
        seen.append((1, 0))
        with record_function(FORWARD):
            return prefill(row, token_ids)

    def prefilled_all(first: int, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        seen.append((len(prompts), 0))
        with record_function(FORWARD):
            return together(first, prompts)

    def stepped(tokens: torch.Tensor) -> torch.Tensor:
        seen.append((tokens.shape[0], tokens.shape[1]))
        with record_function(FORWARD):
            return step(tokens)

    target.prefill, target.prefill_all, target.step = prefilled, prefilled_all, stepped  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del target.prefill, target.prefill_all, target.step


def expected_steps(counts: Sequence[int], rows: int) -> int:
    """Steps of a loop that gives the next request a row as soon as one is free.

    Args:
        counts: steps that each request took part in after its prefill, in the order of their admission.
        rows: of the loop.
    """
    queue, running, steps = list(counts), [], 0
    while queue or running:
        while queue and len(running) < rows:
            running = [left for left in (*running, queue.pop(0)) if left]
        steps += bool(running)
        running = [left - 1 for left in running if left > 1]
    return steps


def reads(monkeypatch: pytest.MonkeyPatch, loop: Decoder, jobs: Sequence[Job]) -> tuple[list[int], list[Running]]:
    """How often the host read from the device after each target forward and before the next one, by torch's profiler.

    `Tensor.tolist` leaves no trace of its own on a CPU, so it is marked.
    """
    tolist = torch.Tensor.tolist

    def marked(self: torch.Tensor) -> object:
        with record_function("read"):
            return tolist(self)

    with monkeypatch.context() as patched, forwards(loop), profile(activities=[ProfilerActivity.CPU]) as found:
        patched.setattr(torch.Tensor, "tolist", marked)
        done = run_all(loop, jobs)
    counts: list[int] = []
    # the profiler's own `events()` builds trees of them, which takes seconds
    events = ((event.start_ns(), event.name()) for event in found.profiler.kineto_results.events())  # type: ignore[union-attr]
    for _, name in sorted(event for event in events if event[1] == FORWARD or event[1] in READS):
        if name == FORWARD:
            counts.append(0)
        else:
            counts[-1] += 1
    return counts, done


@contextmanager
def set_apart() -> Iterator[None]:
    """What is alive already is left out of `live_tensors` meanwhile: to look through all of it takes half a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def live_tensors() -> tuple[int, int]:
    """Number and bytes of all tensors that Python holds, see `set_apart`."""
    gc.collect()
    held = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]
    return len(held), sum(t.numel() * t.element_size() for t in held)


@lru_cache(maxsize=1)
def without_data() -> tuple[PreTrainedModel, dict[str, Callable[[RowForward], Drafter]]]:
    """A target on a device that has shapes and no numbers, and drafters for it."""
    whole = tiny_model(eos=False)
    draft, heads = noisy_copy(whole).to("meta"), tiny_heads(whole).to("meta")

    def composite(rows: RowForward) -> Drafter:
        fallback = DraftModelDrafter(draft, rows.num_rows)
        return CompositeDrafter(NgramDrafter(rows.num_rows, 3), fallback, rows.num_rows, rows.vocab_size)

    return whole.to("meta"), {
        "ngram": lambda rows: NgramDrafter(rows.num_rows, 3),
        "adaptive": lambda rows: AdaptiveDrafter(NgramDrafter(rows.num_rows, 3), AdaptiveK(DEAR, 2, rows.num_rows)),
        "draft_model": lambda rows: DraftModelDrafter(draft, rows.num_rows),
        "early_exit": lambda rows: EarlyExitDrafter(rows, 1),
        "heads": lambda rows: HeadsDrafter(rows, heads),
        "composite": composite,
    }
