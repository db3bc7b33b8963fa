"""Tiny random models and a tiny tokenizer, made in the test: nothing is downloaded."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from canary.domain.traffic import SamplingParams
from canary.engine.decode import Decoder
from canary.engine.drafters.base import Drafter
from canary.engine.drafters.composite import CompositeDrafter
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.early_exit import EarlyExitDrafter
from canary.engine.drafters.heads import HeadsDrafter, make_heads
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.hooks import Hooks
from canary.engine.requests import Job, Running
from canary.engine.verify import Verify, verify

VOCAB = 97
EOS = 2
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m['role'] + ' ' + (m['content'] or '') + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant ' }}{% endif %}"
)


def spelt(vocab: dict[str, int], *, eos: str = "</s>", special: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """A character tokenizer over a vocabulary of the test's own; `special` words beside the usual three are special."""
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token=eos,
        clean_up_tokenization_spaces=False,
        additional_special_tokens=list(special),
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_tokenizer(extra: int = 0) -> PreTrainedTokenizerFast:
    """A character tokenizer: three special tokens and printable ASCII; `extra` adds further characters."""
    alphabet = [chr(c) for c in range(32, 32 + VOCAB - 3 + extra)]
    return spelt({"<pad>": 0, "<s>": 1, "</s>": EOS} | {c: i + 3 for i, c in enumerate(alphabet)})


def _neox(sizes: dict[str, Any]) -> PreTrainedModel:
    known = {name: size for name, size in sizes.items() if name not in ("num_key_value_heads", "head_dim")}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**known, tie_word_embeddings=False))


FAMILIES: dict[str, Callable[[dict[str, Any]], PreTrainedModel]] = {
    "llama": lambda sizes: LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True)),
    "qwen2": lambda sizes: Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=False)),
    "qwen3": lambda sizes: Qwen3ForCausalLM(Qwen3Config(**sizes, tie_word_embeddings=False)),
    "gemma": lambda sizes: GemmaForCausalLM(GemmaConfig(**sizes | {"num_key_value_heads": 1})),
    "gpt_neox": _neox,
}


def tiny_model(
    family: str = "llama", *, layers: int = 2, seed: int = 0, eos: bool = True, loopy: bool = False
) -> PreTrainedModel:
    """A random fp32 model with grouped query heads.

    Args:
        family: `llama` (tied head), `qwen2` (own head), `qwen3` (normed queries and keys), `gemma` (scaled embeddings, one key
            head) or `gpt_neox` (parallel residuals, partial rotation, no grouped heads).
        eos: False gives a model that never stops by itself.
        loopy: the next token depends on the last one almost alone, so that greedy text repeats itself and copying pays.
    """
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 6 if family == "llama" else 4,  # 3 and 2 query heads per key head
        "num_key_value_heads": 2,
        "head_dim": 16 if family == "llama" else 12,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": EOS if eos else None,
        "pad_token_id": 0,
        "initializer_range": 0.3,
    }
    model = FAMILIES[family](sizes)
    trunk = model.base_model
    with torch.no_grad():
        if family == "gpt_neox":
            trunk.final_layer_norm.weight.mul_(2)
        elif family == "gemma":
            trunk.norm.weight.add_(1)  # a norm there scales by 1 + weight
        else:
            trunk.norm.weight.mul_(2)
        for layer in trunk.layers if loopy else ():
            attention = layer.attention.dense if family == "gpt_neox" else layer.self_attn.o_proj
            attention.weight.mul_(0.02)
    model.generation_config.eos_token_id = EOS if eos else None
    model.generation_config.pad_token_id = 0
    return model.eval()


def save_tiny(directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    """Write model and tokenizer as an ordinary model directory."""
    model.save_pretrained(directory)
    (tokenizer or tiny_tokenizer()).save_pretrained(directory)
    return directory


def prompts(count: int, *, seed: int = 0, shortest: int = 1, longest: int = 40) -> list[list[int]]:
    """Ragged random prompts without special tokens, some of them repetitive."""
    gen = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        length = int(torch.randint(shortest, longest + 1, (1,), generator=gen))
        ids = torch.randint(3, VOCAB, (length,), generator=gen).tolist()
        made.append((ids[:5] * 8)[: max(length, 1)] if i % 3 == 0 else ids)
    return made


def noisy_copy(model: PreTrainedModel, noise: float = 0.06) -> PreTrainedModel:
    """A draft that is right about as often as it is wrong."""
    draft, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * weight.std() * noise if weight.ndim > 1 else 0.0)
    return draft


def tiny_heads(model: PreTrainedModel, num_heads: int = 4, seed: int = 7) -> nn.ModuleList:
    """Untrained heads whose last layers are the model's own head: right about as often as the text repeats itself."""
    torch.manual_seed(seed)
    heads = make_heads(num_heads, 1, model.config.hidden_size, model.config.vocab_size)
    with torch.no_grad():
        for head in heads:
            head[0].linear.weight.mul_(0.3)
            head[1].weight.copy_(model.get_output_embeddings().weight)
    return heads.eval().requires_grad_(False)


def write_heads(directory: Path, heads: nn.ModuleList) -> Path:
    """Heads as they are published: a configuration beside one file of tensors."""
    directory.mkdir(exist_ok=True)
    layout = {"medusa_num_heads": len(heads), "medusa_num_layers": len(heads[0]) - 1, "base_model_name_or_path": "tiny"}
    (directory / "config.json").write_text(json.dumps(layout))
    save_file(dict(heads.state_dict()), directory / "medusa_lm_head.safetensors")
    return directory


def _composite(target: PreTrainedModel, rows: RowForward) -> Drafter:
    fallback = DraftModelDrafter(noisy_copy(target), rows.num_rows)
    return CompositeDrafter(NgramDrafter(rows.num_rows, 3), fallback, rows.num_rows, rows.vocab_size)


DRAFTERS: dict[str, Callable[[PreTrainedModel, RowForward], Drafter | None]] = {
    "none": lambda target, rows: None,
    "ngram": lambda target, rows: NgramDrafter(rows.num_rows, 3),
    "draft_model": lambda target, rows: DraftModelDrafter(noisy_copy(target), rows.num_rows),
    "target_itself": lambda target, rows: DraftModelDrafter(target, rows.num_rows),
    "early_exit": lambda target, rows: EarlyExitDrafter(rows, target.config.num_hidden_layers - 1),
    "exit_at_the_end": lambda target, rows: EarlyExitDrafter(rows, target.config.num_hidden_layers),
    "heads": lambda target, rows: HeadsDrafter(rows, tiny_heads(target)),
    "composite": _composite,
}


def decoder(model: PreTrainedModel, drafter: str = "none", *, rows: int = 4, k: int = 4, verifier: Verify = verify) -> Decoder:
    """A loop over a tiny model with one of `DRAFTERS`."""
    target = RowForward(model, rows)
    proposing = DRAFTERS[drafter](model, target)
    ends = frozenset() if model.generation_config.eos_token_id is None else frozenset({EOS})
    width = 0 if proposing is None else k
    return Decoder(target, tiny_tokenizer(), ends, proposing, width, hooks=Hooks(verify=verifier))


def job(index: int, token_ids: Sequence[int], max_tokens: int = 24, **params: object) -> Job:
    """A request whose key is its index; greedy unless a temperature is given."""
    return Job(index, tuple(token_ids), SamplingParams(max_tokens, **({"temperature": 0.0} | params)), (index, 7))


def run_all(loop: Decoder, jobs: Sequence[Job], *, traced: bool = False) -> list[Running]:
    """All requests, in the order of the jobs."""
    done = {running.job.index: running for running in loop.run(jobs, traced=traced)}
    return [done[each.index] for each in jobs]
