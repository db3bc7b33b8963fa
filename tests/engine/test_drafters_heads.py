"""Heads: the published layout is read as it is written, each head speaks from the target's last state, misfits are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from canary.domain.errors import ModelError
from canary.domain.traffic import SamplingParams
from canary.engine import sampling, streams
from canary.engine.drafters.head_files import heads_digest, load_heads
from canary.engine.drafters.heads import HeadsDrafter, make_heads
from canary.engine.forward import RowForward
from canary.engine.rows import Rows
from tests.engine.test_drafters import asked
from tests.engine.tiny import VOCAB, tiny_heads, tiny_model, write_heads

HIDDEN = 48


def opened(directory: Path, num_needed: int = 3) -> torch.nn.ModuleList:
    return load_heads(directory, hidden_size=HIDDEN, vocab_size=VOCAB, num_needed=num_needed)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_the_published_layout_is_read(tmp_path: Path, suffix: str) -> None:
    """Written down by hand: `HEAD.LAYER.linear.weight`, `HEAD.LAYER.linear.bias`, and `HEAD.LAST.weight` without a bias."""
    torch.manual_seed(0)
    state: dict[str, torch.Tensor] = {}
    for head in range(3):
        for layer in range(2):
            state[f"{head}.{layer}.linear.weight"] = torch.randn(HIDDEN, HIDDEN)
            state[f"{head}.{layer}.linear.bias"] = torch.randn(HIDDEN)
        state[f"{head}.2.weight"] = torch.randn(VOCAB, HIDDEN)
    (tmp_path / "config.json").write_text(
        json.dumps({"medusa_num_heads": 3, "medusa_num_layers": 2, "base_model_name_or_path": "t"})
    )
    file = tmp_path / f"medusa_lm_head.{suffix}"
    save_file(state, file) if suffix == "safetensors" else torch.save(state, file)
    heads = opened(tmp_path)
    x = torch.randn(4, HIDDEN)
    for head in range(3):
        wanted = x
        for layer in range(2):
            inner = wanted @ state[f"{head}.{layer}.linear.weight"].T + state[f"{head}.{layer}.linear.bias"]
            wanted = wanted + inner / (1 + (-inner).exp())
        assert torch.allclose(heads[head](x), wanted @ state[f"{head}.2.weight"].T, atol=1e-4)
    assert not any(weight.requires_grad for weight in heads.parameters())


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma", "gpt_neox"])
@torch.inference_mode()
def test_heads_speak_from_the_state_behind_the_last_token(family: str) -> None:
    """After a prefill, after a step that accepted some of its drafts, and after a move: head i gives draft i of that state."""
    model = tiny_model(family)
    rows, heads = RowForward(model, 3), tiny_heads(model)
    drafter = HeadsDrafter(rows, heads)
    texts = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
    for row, text in enumerate(texts):
        rows.prefill(row, text)
        drafter.begin(row, text, 40)
        drafter.commit(row, [20 + row], 0)
    check(model, drafter, heads, texts)
    rows.step(torch.tensor([[20, 30, 31], [21, 32, 33], [22, 34, 35]]))
    for row, accepted in enumerate((2, 0, 1)):
        new = [[20, 30, 31], [21], [22, 34]][row]
        rows.lengths[row] += 1 + accepted
        drafter.commit(row, [*new[1:], 40 + row], accepted)
        texts[row] = [*texts[row], *new]
    check(model, drafter, heads, texts)
    drafter.end(0)
    drafter.move(2, 0)
    check(model, drafter, heads, [texts[2], texts[1]])


def check(model: Any, drafter: HeadsDrafter, heads: torch.nn.ModuleList, texts: list[list[int]]) -> None:
    asking = asked((3,) * len(texts), temperature=0.8)
    proposal = drafter.propose(asking)
    assert proposal.probs is not None
    for row, text in enumerate(texts):
        state = model.base_model(torch.tensor([text]), use_cache=False).last_hidden_state[0, -1:]
        for i in range(3):
            wanted = sampling.process(heads[i](state), Rows.of([SamplingParams(9, temperature=0.8)]))
            assert torch.allclose(proposal.probs[row, i], wanted[0], atol=1e-4)
            uniform = streams.uniforms(asking.keys[row : row + 1], streams.Stream.DRAFT, torch.tensor([[5 + i]]))[:, 0]
            drawn = sampling.draw(proposal.probs[row : row + 1, i], uniform)
            assert drawn.tokens.tolist() == [int(proposal.tokens[row, i])]


def test_a_target_keeps_no_state_unless_a_drafter_asks() -> None:
    model = tiny_model()
    rows = RowForward(model, 1)
    head = rows.view.get_output_embeddings()
    with torch.inference_mode():
        rows.prefill(0, [5, 6])
    assert rows._hidden is None
    assert not head._forward_pre_hooks
    for _ in range(2):
        HeadsDrafter(rows, tiny_heads(model))
    assert len(head._forward_pre_hooks) == 1
    assert not model.get_output_embeddings()._forward_pre_hooks


def test_the_digest_is_of_everything(tmp_path: Path) -> None:
    first = heads_digest(write_heads(tmp_path / "a", tiny_heads(tiny_model())))
    same = heads_digest(write_heads(tmp_path / "b", tiny_heads(tiny_model())))
    other = heads_digest(write_heads(tmp_path / "c", tiny_heads(tiny_model(), seed=8)))
    fewer = heads_digest(write_heads(tmp_path / "d", tiny_heads(tiny_model(), 3)))
    assert first == same
    assert len({first, other, fewer}) == 3


def _config(**changes: object) -> Callable[[Path], object]:
    def change(directory: Path) -> None:
        file = directory / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def _state(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def rewrite(directory: Path) -> None:
        state = dict(make_heads(4, 1, HIDDEN, VOCAB).state_dict())
        change(state)
        save_file(state, directory / "medusa_lm_head.safetensors")

    return rewrite


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), r"config\.json cannot be read"),
    "no JSON": (lambda d: (d / "config.json").write_text("{"), r"config\.json cannot be read"),
    "a list": (lambda d: (d / "config.json").write_text("[]"), r"config\.json is not a JSON object"),
    "no count": (_config(medusa_num_heads=None), "says medusa_num_heads: None, but a count of at least 1"),
    "no layers": (_config(medusa_num_layers=0), "says medusa_num_layers: 0, but a count of at least 1"),
    "no weights": (
        lambda d: (d / "medusa_lm_head.safetensors").unlink(),
        "neither medusa_lm_head.safetensors nor medusa_lm_head.pt",
    ),
    "cut short": (
        lambda d: (d / "medusa_lm_head.safetensors").write_bytes(b"\x08"),
        r"medusa_lm_head\.safetensors cannot be loaded",
    ),
    "said hidden": (_config(hidden_size=64), "the heads' hidden_size is 64, but the target's is 48. Use heads that were trained"),
    "said words": (_config(vocab_size=32000), "the heads' vocab_size is 32000, but the target's is 97"),
    "fewer weights": (_state(lambda s: s.pop("2.0.linear.bias")), "the heads lack 2.0.linear.bias"),
    "more weights": (_config(medusa_num_heads=3), "the heads have 3.0.linear.bias, which the layout"),
    "hidden": (
        _state(lambda s: s.update({"0.0.linear.bias": torch.zeros(64)})),
        "heads' 0.0.linear.bias is 64, but this target needs 48. Use heads that were trained for this target",
    ),
    "words": (
        _state(lambda s: s.update({"1.1.weight": torch.zeros(100, HIDDEN)})),
        "heads' 1.1.weight is 100 x 48, but this target needs 97 x 48",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_heads_that_do_not_fit_are_refused(tmp_path: Path, name: str) -> None:
    change, sentence = BROKEN[name]
    change(write_heads(tmp_path, tiny_heads(tiny_model())))
    with pytest.raises(ModelError, match=f"^subject.drafter.heads: .*{sentence}"):
        opened(tmp_path)


def test_more_drafts_than_heads_are_refused(tmp_path: Path) -> None:
    write_heads(tmp_path, tiny_heads(tiny_model()))
    with pytest.raises(
        ModelError, match=r"num_speculative_tokens: there are 4 heads, but 5 draft tokens are asked for. Ask for at most 4"
    ):
        opened(tmp_path, 5)


def test_a_pickle_that_is_a_program_is_not_run(tmp_path: Path) -> None:
    write_heads(tmp_path, tiny_heads(tiny_model()))
    (tmp_path / "medusa_lm_head.safetensors").unlink()
    torch.save({"0.0.linear.weight": Path("x")}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(ModelError, match=r"medusa_lm_head\.pt cannot be loaded"):
        opened(tmp_path)
