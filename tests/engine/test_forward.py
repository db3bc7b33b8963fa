"""A prompt in pieces is the whole prompt, and memory that runs out ends one request, not the worker."""

from __future__ import annotations

import pytest
import torch

from canary.domain.errors import EngineMemoryError
from canary.engine import cache as cache_module
from canary.engine.forward import FAST, PLAIN, RowForward
from tests.engine.tiny import prompts, tiny_model

PROMPT = prompts(1, seed=9, shortest=40)[0]


@torch.inference_mode()
@pytest.mark.parametrize("forward", [PLAIN, FAST])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("size", [1, 7, 39, 40, 64])
def test_pieces_equal_the_whole(family: str, forward: str, size: int) -> None:
    rows = RowForward(tiny_model(family), 3, forward=forward)
    wanted = rows.prefill(0, PROMPT)
    other = rows.prefill(1, [5, 6, 7])
    start, logits, calls = 0, None, 0
    while logits is None:
        logits = rows.prefill_chunk(2, PROMPT, start, size)
        start, calls = rows.lengths[2], calls + 1
        assert start == min(calls * size, len(PROMPT))
        # The other rows step between the pieces, over whatever stands in this one.
        again = rows.step(torch.tensor([[8], [9]]))
        assert torch.isfinite(again).all()
    assert calls == -(-len(PROMPT) // size)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)
    after = rows.step(torch.tensor([[11, 12]] * 3))
    torch.testing.assert_close(after[2], after[0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(other, wanted, atol=0.1)


def test_a_piece_past_the_prompt_is_a_mistake() -> None:
    rows = RowForward(tiny_model(), 1)
    with pytest.raises(ValueError, match="starts at 40"):
        rows.prefill_chunk(0, PROMPT, 40)


class _Full:
    """An allocator that fails after so many allocations."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, old: torch.Tensor, capacity: int) -> torch.Tensor:
        if self.left == 0:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory")
        self.left -= 1
        return TRUE_GROWN(old, capacity)


TRUE_GROWN = cache_module._grown


@torch.inference_mode()
@pytest.mark.parametrize("allocations", [0, 1])  # of one a layer
def test_a_row_that_cannot_grow_ends_alone(monkeypatch: pytest.MonkeyPatch, allocations: int) -> None:
    rows, twin = (RowForward(tiny_model(), 2) for _ in range(2))
    for each in (rows, twin):
        each.prefill(0, [3, 4, 5])
    monkeypatch.setattr(cache_module, "_grown", _Full(allocations))
    with pytest.raises(EngineMemoryError, match=r"no memory for a row of 40 tokens.*batch_size"):
        rows.prefill(1, PROMPT)
    assert (rows.lengths, rows.cache.capacity) == ([3, 0], 32)
    assert torch.equal(rows.step(torch.tensor([[6]])), twin.step(torch.tensor([[6]])))
    monkeypatch.setattr(cache_module, "_grown", TRUE_GROWN)
    torch.testing.assert_close(rows.prefill(1, PROMPT), twin.prefill(1, PROMPT))


@torch.inference_mode()
@pytest.mark.parametrize("forward", [PLAIN, FAST])
def test_memory_that_runs_out_within_a_forward_says_so(monkeypatch: pytest.MonkeyPatch, forward: str) -> None:
    rows = RowForward(tiny_model(), 1, forward=forward)

    def full(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def broken(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    name = "update" if forward == PLAIN else "update_both"
    monkeypatch.setattr(rows.cache, name, full)
    with pytest.raises(EngineMemoryError, match="a forward of 3 tokens"):
        rows.prefill(0, [3, 4, 5])
    monkeypatch.setattr(rows.cache, name, broken)
    with pytest.raises(RuntimeError, match="mat1"):
        rows.prefill(0, [3, 4, 5])
    assert rows.lengths == [0]
