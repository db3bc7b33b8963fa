"""Steps of fixed shape: their padding, their memory, when they are captured anew, and what becomes of one that cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from canary.domain.errors import ModelError
from canary.engine import forward as forward_module
from canary.engine import graphs, packed
from canary.engine.decode import Decoder
from canary.engine.forward import PLAIN, RowForward
from canary.engine.graphs import COMPILE, CUDA_GRAPHS, OFF, Given, Run, StepGraphs
from tests.engine.tiny import DRAFTERS, job, prompts, run_all, tiny_model, tiny_tokenizer

CPU = torch.device("cpu")


class Recorder:
    """A capture that keeps what it is given and gives it back: every run of it reads the same memory, as a graph does."""

    def __init__(self) -> None:
        self.runs = 0
        self.logits: dict[tuple[int, ...], torch.Tensor] = {}

    def __call__(self, run: Run) -> Run:
        shape = tuple(run()[0].shape)

        def again() -> Given:
            self.runs += 1
            logits, hidden = run()
            kept = self.logits.setdefault(shape, torch.empty_like(logits))  # a graph's result is always the same memory
            return kept.copy_(logits), hidden

        return again


def captured(monkeypatch: pytest.MonkeyPatch, capture: Callable[[Run], Run], rows: int = 4, family: str = "llama") -> RowForward:
    """A loop whose steps go through `capture`."""
    monkeypatch.setattr(forward_module, "find_capture", lambda mode, _device: None if mode == OFF else capture)
    return RowForward(tiny_model(family, eos=False), rows, graphs=COMPILE)


def steps(rows: RowForward) -> StepGraphs:
    assert rows.graphs is not None
    return rows.graphs


@pytest.mark.parametrize(("count", "most", "padded"), [(1, 8, 1), (2, 8, 2), (3, 8, 4), (5, 8, 8), (5, 6, 6), (6, 6, 6)])
def test_rows_go_up_to_powers_of_two(count: int, most: int, padded: int) -> None:
    assert graphs.padded_rows(count, most) == padded


def test_widths_go_up_to_those_that_are_measured() -> None:
    assert [graphs.padded_width(w) for w in (1, 2, 3, 4, 5, 6, 9, 10, 33, 34)] == [1, 2, 3, 5, 5, 9, 9, 17, 33, 34]


@torch.inference_mode()
def test_a_shape_is_captured_once_and_its_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    rows = captured(monkeypatch, recorder)
    rows.cache.reserve(600)
    for row, ids in enumerate(prompts(3, seed=1)):
        rows.prefill(row, ids)
    first = rows.step(torch.tensor([[5, 6], [7, 8], [9, 10]]))
    again = rows.step(torch.tensor([[11, 12], [13, 14], [15, 16]]))
    assert first.data_ptr() == again.data_ptr()
    assert first.shape == (3, 2, rows.vocab_size)
    assert (steps(rows).captures, recorder.runs) == (1, 2)
    rows.step(torch.tensor([[5, 6]] * 4))  # the same shape without padding
    assert steps(rows).captures == 1
    rows.step(torch.tensor([[5, 6, 7, 8]] * 4))
    rows.step(torch.tensor([[5, 6, 7, 8, 9]] * 4))
    assert steps(rows).captures == 2
    rows.lengths[0] = 255
    rows.step(torch.tensor([[5, 6]] * 4))  # its last column is past the first window
    assert steps(rows).captures == 3
    assert {s.window for s in steps(rows)._captured} == {256, 512}


@torch.inference_mode()
def test_a_cache_that_grows_makes_every_capture_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, twin = captured(monkeypatch, Recorder()), RowForward(tiny_model(eos=False), 4)
    for each in (rows, twin):
        each.prefill(0, [3, 4, 5])
    torch.testing.assert_close(rows.step(torch.tensor([[6]])), twin.step(torch.tensor([[6]])), rtol=1e-4, atol=1e-4)
    for each in (rows, twin):
        each.cache.reserve(200)
    torch.testing.assert_close(rows.step(torch.tensor([[7]])), twin.step(torch.tensor([[7]])), rtol=1e-4, atol=1e-4)
    assert steps(rows).captures == 2
    assert [s.capacity for s in steps(rows)._captured] == [rows.cache.capacity]


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_padding_changes_no_row(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    rows, twin = captured(monkeypatch, Recorder(), 5, family), RowForward(tiny_model(family, eos=False), 5, forward=PLAIN)
    texts = prompts(4, seed=4)
    for each in (rows, twin):
        for row, ids in enumerate(texts):
            each.prefill(row, ids)
    for width, count in ((4, 3), (1, 3), (6, 2), (1, 4)):
        tokens = torch.randint(3, 90, (count, width), generator=torch.Generator().manual_seed(width))
        torch.testing.assert_close(rows.step(tokens), twin.step(tokens), rtol=1e-4, atol=1e-4)
        for each in (rows, twin):
            each.lengths[:count] = [length + 1 for length in each.lengths[:count]]
    assert rows.lengths == twin.lengths


@pytest.mark.parametrize(("drafter", "temperature"), [("none", 0.0), ("ngram", 0.9), ("early_exit", 0.9), ("heads", 0.9)])
def test_the_loop_gives_the_same_tokens(monkeypatch: pytest.MonkeyPatch, drafter: str, temperature: float) -> None:
    model = tiny_model(eos=False, loopy=True, seed=3)
    jobs = [job(i, ids, 12, temperature=temperature) for i, ids in enumerate(prompts(4, seed=6))]

    def run(rows: RowForward) -> list[list[int]]:
        proposing = DRAFTERS[drafter](model, rows)
        loop = Decoder(rows, tiny_tokenizer(), frozenset(), proposing, 0 if proposing is None else 3)
        return [r.token_ids for r in run_all(loop, jobs, traced=True)]

    wanted = run(RowForward(model, 3))
    recorder = Recorder()
    monkeypatch.setattr(forward_module, "find_capture", lambda mode, _device: None if mode == OFF else recorder)
    rows = RowForward(model, 3, graphs=COMPILE)
    assert run(rows) == wanted
    assert recorder.runs > steps(rows).captures > 0
    assert steps(rows).note is None


@torch.inference_mode()
def test_there_is_room_for_the_padding_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, twin = captured(monkeypatch, Recorder()), RowForward(tiny_model(eos=False), 4)
    text, tokens = prompts(1, seed=9, shortest=28, longest=28)[0], torch.tensor([[5, 6, 7, 8]])
    assert len(text) + tokens.shape[1] == rows.cache.capacity
    for each in (rows, twin):
        each.prefill(0, text)
    torch.testing.assert_close(rows.step(tokens), twin.step(tokens), rtol=1e-4, atol=1e-4)
    assert rows.cache.capacity > twin.cache.capacity


@torch.inference_mode()
def test_a_capture_that_fails_ends_the_capturing_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, calls = Recorder(), iter(range(10))

    def second_fails(run: Run) -> Run:
        if next(calls) == 1:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        return recorder(run)

    rows, twin = captured(monkeypatch, second_fails), RowForward(tiny_model(eos=False), 4)
    for each in (rows, twin):
        each.prefill(0, [3, 4, 5])
    assert graphs.stepping(rows.graphs) == COMPILE
    rows.step(torch.tensor([[6]]))
    with pytest.warns(RuntimeWarning, match="1 rows and 2 tokens cannot be captured: operation not permitted when stream is cap"):
        found = rows.step(torch.tensor([[6, 7]]))
    torch.testing.assert_close(found, twin.step(torch.tensor([[6, 7]])))
    rows.step(torch.tensor([[6]]))
    assert (recorder.runs, graphs.stepping(rows.graphs), next(calls)) == (1, OFF, 2)


@torch.inference_mode()
def test_what_runs_again_without_its_code_still_says_where_its_states_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen(run: Run) -> Run:
        given = run()
        return lambda: given

    rows = captured(monkeypatch, frozen)
    rows.keep_hidden()
    for row in (0, 1):
        rows.prefill(row, [3, 4, 5 + row])
    rows.step(torch.tensor([[6], [7]]))
    wanted = rows.hidden(1, 0)
    rows.prefill(3, [8, 9])
    assert not torch.equal(rows.hidden(3, 0), wanted)
    rows.step(torch.tensor([[6], [7]]))
    assert torch.equal(rows.hidden(1, 0), wanted)


def test_what_is_compiled_has_no_packed_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's compiler does not know the packed operators, and would fail at the first step of a real model."""
    monkeypatch.setattr(packed, "_seconds", lambda *runs: [1.0, 0.1])
    assert captured(monkeypatch, Recorder()).packed == ()
    assert RowForward(tiny_model(eos=False), 2).packed or not torch.backends.mkldnn.is_available()


def test_off_captures_nothing_and_a_cpu_has_no_cuda_graphs() -> None:
    assert graphs.find_capture(OFF, CPU) is None
    with pytest.raises(ModelError, match=r"a CPU has no CUDA graphs") as caught:
        graphs.find_capture(CUDA_GRAPHS, CPU)
    assert caught.value.where == "subject.graphs"
    with pytest.raises(ModelError, match="'always' is unknown"):
        graphs.find_capture("always", CPU)
