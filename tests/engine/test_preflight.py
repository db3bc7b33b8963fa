"""Preflight on tiny model directories: a mismatch is refused with a sentence of its own, what only looks like one is accepted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from canary.domain.errors import ExitCode
from canary.domain.policy import Drafter, Policy
from canary.engine import packed
from canary.engine import preflight as collecting
from canary.flow.tools.preflight import Preflight, judge
from canary.flow.tools.preflight_facts import Finding, Level
from tests.engine.tiny import CHAT_TEMPLATE, VOCAB, save_tiny, tiny_model, tiny_tokenizer
from tests.flow import tiny_walk

Edit = Callable[[Path], object]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "target", tiny_model())


@pytest.fixture
def draft(target: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(target, tmp_path / "draft"))


def run(target: Path, draft: Path | None, **given: object) -> Preflight:
    policy: Policy = tiny_walk.policy(target)
    if draft is not None:
        policy = replace(policy, subject=replace(policy.subject, drafter=Drafter("draft_model", 3, model=str(draft))))
    return judge(collecting.collect(policy, draft or target, (), **given))  # type: ignore[arg-type]


def said(found: Preflight) -> list[Finding]:
    """The findings about the models."""
    return [f for f in found.findings if f.field != "memory"]


def config(draft: Path, **changes: object) -> None:
    path = draft / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def model(draft: Path, made: PreTrainedModel) -> None:
    for old in draft.glob("*.safetensors"):
        old.unlink()
    made.save_pretrained(draft)


def tokenizer(draft: Path, change: Callable[[PreTrainedTokenizerFast], object]) -> None:
    words = AutoTokenizer.from_pretrained(draft)
    change(words)
    words.save_pretrained(draft)


def raw_tokenizer(draft: Path, change: Callable[[Tokenizer], object]) -> None:
    raw = Tokenizer.from_file(str(draft / "tokenizer.json"))
    change(raw)
    raw.save(str(draft / "tokenizer.json"))


def small(**sizes: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**(json.loads(json.dumps(SIZES)) | sizes))).eval()


SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def other_words(draft: Path) -> None:
    """A vocabulary with nothing in common but the special tokens."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, VOCAB)}
    raw = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    made.chat_template = CHAT_TEMPLATE
    made.save_pretrained(draft)


def special(name: str, word: str) -> Edit:
    return lambda draft: tokenizer(draft, lambda words: setattr(words, name, word))


def mamba(draft: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1, "pad_token_id": 0}
    model(draft, MambaForCausalLM(MambaConfig(**sizes, bos_token_id=1, eos_token_id=2)))
    config(draft, max_position_embeddings=256)


def bos_first(draft: Path) -> None:
    post = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    raw_tokenizer(draft, lambda raw: setattr(raw, "post_processor", post))


# what is done to the draft -> the field that preflight names, and a part of its sentence
MISMATCHES: dict[str, tuple[Edit, str, str]] = {
    "another vocabulary": (other_words, "draft.vocabulary", "cannot be mapped"),
    "narrow head": (lambda d: model(d, small(vocab_size=60)), "draft.embedding_rows", "only 60 embedding rows"),
    "added token without a row": (
        lambda d: tokenizer(d, lambda w: w.add_tokens([AddedToken("<tool>", special=True)])),
        "draft.embedding_rows",
        f"ids up to {VOCAB}, but",
    ),
    "other bos": (special("bos_token", "a"), "draft.bos_token_id", "texts would begin otherwise"),
    "other eos": (special("eos_token", "b"), "draft.eos_token_id", "end an answer with another token"),
    "other padding": (special("pad_token", "c"), "draft.pad_token_id", "padding would be read as text"),
    "other unknown": (special("unk_token", "d"), "draft.unk_token_id", "unknown words"),
    "other template": (
        lambda d: tokenizer(d, lambda w: setattr(w, "chat_template", CHAT_TEMPLATE.replace("<s>", "<s>#"))),
        "draft.chat_template",
        "another framing",
    ),
    "short context": (
        lambda d: model(d, small(max_position_embeddings=64)),
        "draft.max_position_embeddings",
        "ends at 64 tokens",
    ),
    "quantised": (
        lambda d: config(d, quantization_config={"quant_method": "gptq", "bits": 4}),
        "draft.weights",
        "quantised with gptq",
    ),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "draft.weights", "cannot be read"),
    "recurrent cache": (mamba, "draft.cache", "cannot take drafts back"),
    "sliding window": (
        lambda d: model(d, MistralForCausalLM(MistralConfig(**(SIZES | {"sliding_window": 32})))),  # type: ignore[arg-type]
        "draft.cache",
        "SlidingWindow",
    ),
    "other normaliser": (
        lambda d: raw_tokenizer(d, lambda raw: setattr(raw, "normalizer", normalizers.Lowercase())),
        "draft.tokenizer.cutting",
        "cut the same text differently",
    ),
    "bos of its own": (bos_first, "draft.tokenizer.adds", "adds a token to a text by itself"),
}

LOOKALIKES: dict[str, tuple[Edit, str]] = {
    "padded embedding rows": (lambda d: model(d, small(vocab_size=128)), "draft.vocab_size"),
    "other names in the configuration": (
        lambda d: config(d, _name_or_path="somebody/else", architectures=["LlamaForCausalLM"], use_cache=False),
        "",
    ),
    "template with another comment": (
        lambda d: tokenizer(d, lambda w: setattr(w, "chat_template", "{# made by hand #}" + CHAT_TEMPLATE)),
        "draft.chat_template",
    ),
    "tokenizer of another class": (
        lambda d: (d / "tokenizer_config.json").write_text(
            json.dumps(json.loads((d / "tokenizer_config.json").read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"})
        ),
        "",
    ),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_mismatch_is_refused_with_its_own_sentence(case: str, target: Path, draft: Path) -> None:
    edit, field, said = MISMATCHES[case]
    edit(draft)
    found = run(target, draft)
    refused = {f.field: f.sentence for f in found.findings if f.level is Level.REFUSED}
    assert found.code is ExitCode.USAGE
    assert field in refused
    assert said in refused[field]


def test_every_mismatch_has_a_sentence_that_no_other_has() -> None:
    assert len({(field, said) for _, field, said in MISMATCHES.values()}) == len(MISMATCHES) >= 12


@pytest.mark.parametrize("case", LOOKALIKES)
def test_what_only_looks_like_a_mismatch_is_accepted(case: str, target: Path, draft: Path) -> None:
    edit, noted = LOOKALIKES[case]
    edit(draft)
    found = run(target, draft)
    assert [f.sentence for f in found.findings if f.level in (Level.REFUSED, Level.CARRIED)] == []
    assert found.code is ExitCode.PASS
    assert [f.field for f in found.findings if f.level is Level.NOTE] == ([noted] if noted else [])


def test_the_draft_as_it_is_has_nothing_against_it(target: Path, draft: Path) -> None:
    assert said(run(target, draft)) == []


def test_permuted_ids_are_carried_by_the_words_they_stand_for(target: Path, draft: Path) -> None:
    path = draft / "tokenizer.json"
    found = json.loads(path.read_text())
    vocab = found["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    path.write_text(json.dumps(found))
    (finding,) = said(run(target, draft))
    assert (finding.field, finding.level) == ("draft.vocabulary.ids", Level.CARRIED)
    assert "2 words, the first is 'a'" in finding.sentence
    assert "100 %" in finding.sentence


def test_more_words_than_the_target_are_carried(target: Path, draft: Path) -> None:
    tiny_tokenizer(extra=3).save_pretrained(draft)
    model(draft, small(vocab_size=VOCAB + 3))
    found = run(target, draft)
    assert not found.refused
    assert [(f.field, f.level) for f in said(found)] == [("draft.vocabulary", Level.CARRIED)]


def test_other_padding_and_cutting_do_not_matter_where_words_are_mapped(target: Path, draft: Path) -> None:
    """Mapped drafts are never padded in the draft's ids, nor is any text cut by its tokenizer."""
    tiny_tokenizer(extra=3).save_pretrained(draft)
    model(draft, small(vocab_size=VOCAB + 3))
    special("pad_token", "c")(draft)
    raw_tokenizer(draft, lambda raw: setattr(raw, "normalizer", normalizers.Lowercase()))
    found = {f.field: f.level for f in said(run(target, draft))}
    assert found == {
        "draft.vocabulary": Level.CARRIED,
        "draft.pad_token_id": Level.NOTE,
        "draft.tokenizer.cutting": Level.CARRIED,
    }


def test_a_target_whose_tokenizer_outgrew_its_model_is_refused(target: Path, tmp_path: Path) -> None:
    grown = Path(shutil.copytree(target, tmp_path / "grown"))
    tokenizer(grown, lambda w: w.add_tokens([AddedToken("<new>", special=True)]))
    found = run(grown, None)
    assert [f.field for f in found.findings if f.level is Level.REFUSED] == ["target.embedding_rows"]


@pytest.mark.parametrize("packs", [False, True])
def test_memory_gives_the_requests_before_and_after(
    target: Path, draft: Path, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_seconds", lambda *runs: [1.0, 0.1 if packs else 2.0])
    bare = sum(weight.nbytes for weight in tiny_model().parameters())
    alone, both = run(target, None, memory=4e6, context=100), run(target, draft, memory=4e6, context=100)
    per_token = 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, width, float32
    weights = alone.room.target
    assert (weights > 1.5 * bare) is packs or not torch.backends.mkldnn.is_available(), "packed copies count"
    assert alone.facts.target.cache_bytes == per_token
    assert alone.room.before == alone.room.after == int((4e6 - weights) // (per_token * 100))
    assert both.room.after == int((4e6 - 2 * weights) // (2 * per_token * 100)) < both.room.before
    assert [(f.field, f.level) for f in both.findings] == [("memory", Level.WARNING)]
    assert run(target, draft, memory=weights * 1.5, context=100).refused


def test_the_decode_share_is_measured_on_the_route(target: Path) -> None:
    policy = tiny_walk.policy(target)
    facts = collecting.collect(policy, target, tiny_walk.prompts(3, 0.0))
    assert facts.latency is not None
    assert (facts.latency.requests, facts.latency.num_tokens) == (3, 36)
    assert 0 < facts.latency.decode_share < 1
    assert facts.sequence_tokens == facts.latency.prompt_tokens + policy.shadow.max_tokens
