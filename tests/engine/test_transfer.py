"""Traffic between host and device, and which devices there are; an accelerator is played, since a test may have none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from canary.domain.errors import ModelError
from canary.domain.policy import Drafter, Shadow, Subject
from canary.engine import runner, transfer
from canary.engine.decode import Decoder
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.runner import OwnEngine
from tests.engine.tiny import job, prompts, run_all, save_tiny, tiny_model, tiny_tokenizer

CPU = torch.device("cpu")


class Accelerator:
    """Plays a device that shares the host's memory: what is asked of it is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pinned = self.waits = 0
        self.kept: list[torch.Tensor] = []  # so that no memory comes back under the address of a pinned tensor
        self._empty = torch.empty
        monkeypatch.setattr(transfer, "is_host", lambda device: False)
        monkeypatch.setattr(transfer, "moved", self.moved)
        monkeypatch.setattr(torch, "empty", self.empty)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self)

    def moved(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        self.pinned += 1
        return tensor.clone()

    def empty(self, *shape: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        self.pinned += pin_memory
        return self._empty(*shape, **more)

    def synchronize(self) -> None:
        self.waits += 1


def test_on_a_cpu_numbers_are_tensors() -> None:
    made = transfer.to_device([[1, 2], [3, 4]], CPU)
    assert (made.dtype, made.tolist()) == (torch.int64, [[1, 2], [3, 4]])
    assert transfer.to_device([True, False], CPU, torch.bool).tolist() == [True, False]
    assert transfer.moved(made, CPU) is made
    assert transfer.to_host(made) == [[1, 2], [3, 4]]


def test_what_goes_to_a_device_is_pinned_and_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Any]] = []
    tensor, true = torch.tensor([1, 2]), torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: seen.append(("pin", self.tolist())) or self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *a, **k: seen.append(("to", (a, k))) or true(self, *a, **k))
    meta = torch.device("meta")
    assert transfer.moved(tensor, meta).device == meta
    assert seen == [("pin", [1, 2]), ("to", ((meta,), {"non_blocking": True}))]
    seen.clear()
    assert transfer.moved(torch.empty(2, device=meta), meta).device == meta
    assert seen == [("to", ((meta,), {}))], "what lies there already is not pinned"


def test_what_comes_back_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Accelerator(monkeypatch)
    assert transfer.to_host(torch.tensor([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert (device.waits, device.pinned) == (1, 1)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_loop_waits_once_a_step(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    model = tiny_model(eos=False, loopy=True, seed=3)
    jobs = [job(i, ids, 12, temperature=temperature) for i, ids in enumerate(prompts(3, seed=6))]
    wanted = [r.token_ids for r in run_all(Decoder(RowForward(model, 3), tiny_tokenizer(), frozenset()), jobs)]
    loop = Decoder(RowForward(model, 3), tiny_tokenizer(), frozenset(), NgramDrafter(3, 3), 3)
    device, forwards = Accelerator(monkeypatch), []
    for name in ("prefill", "prefill_all", "step"):
        run = getattr(loop.target, name)
        monkeypatch.setattr(loop.target, name, lambda *given, run=run: forwards.append(0) or run(*given))
    done = [r.token_ids for r in run_all(loop, jobs)]
    assert device.waits == len(forwards) > 3
    if temperature == 0:
        assert done == wanted


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:", "cuda0", "cpu:0", ""])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="is unknown") as caught:
        transfer.find_device(name, "subject.device")
    assert caught.value.where == "subject.device"


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    found = [transfer.find_device(name, "subject.device") for name in ("cpu", "cuda", "cuda:0", "cuda:1")]
    assert [str(each) for each in found] == ["cpu", "cuda:1", "cuda:0", "cuda:1"]
    with pytest.raises(ModelError, match=r"no device cuda:2 here, only cpu and 2 GPUs"):
        transfer.find_device("cuda:2", "subject.device")


def test_the_policy_names_device_graphs_and_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    target = save_tiny(tmp_path / "target", tiny_model())
    subject = Subject("own", str(target), Drafter("ngram", 2), "float32")

    def open_engine(**changes: str) -> OwnEngine:
        return OwnEngine.open(replace(subject, **changes), Shadow(batch_size=1, max_tokens=4), tmp_path)  # type: ignore[arg-type]

    plain = open_engine()
    assert {name: plain.info.described[name] for name in ("device", "graphs", "prefill")} == {
        "device": "cpu",
        "graphs": "off",
        "prefill": "in pieces of 256 tokens above 512",
    }
    half = open_engine(dtype="bfloat16")
    assert half.info.described["prefill"] == "whole"
    for changes, field in (({"device": "cuda"}, "subject.device"), ({"graphs": "cuda_graphs"}, "subject.graphs")):
        with pytest.raises(ModelError) as caught:
            open_engine(**changes)
        assert caught.value.where == field
    runner._target.cache_clear()
