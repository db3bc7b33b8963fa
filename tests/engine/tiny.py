"""Tiny random models and a tiny tokenizer, made in the test: nothing is downloaded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from canary.domain.traffic import SamplingParams
from canary.engine.decode import Decoder
from canary.engine.drafters.base import Drafter
from canary.engine.drafters.draft_model import DraftModelDrafter
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


def tiny_tokenizer(extra: int = 0) -> PreTrainedTokenizerFast:
    """A character tokenizer: three special tokens and printable ASCII; `extra` adds further characters."""
    alphabet = [chr(c) for c in range(32, 32 + VOCAB - 3 + extra)]
    vocab = {"<pad>": 0, "<s>": 1, "</s>": EOS} | {c: i + 3 for i, c in enumerate(alphabet)}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_model(
    family: str = "llama", *, layers: int = 2, seed: int = 0, eos: bool = True, loopy: bool = False
) -> PreTrainedModel:
    """A random fp32 model with grouped query heads.

    Args:
        family: `llama` (tied head) or `qwen2` (own head).
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
    if family == "llama":
        model: PreTrainedModel = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=False))
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
        for layer in model.model.layers if loopy else ():
            layer.self_attn.o_proj.weight.mul_(0.02)
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


DRAFTERS: dict[str, Callable[[PreTrainedModel, int], Drafter | None]] = {
    "none": lambda target, rows: None,
    "ngram": lambda target, rows: NgramDrafter(rows, 3),
    "draft_model": lambda target, rows: DraftModelDrafter(noisy_copy(target), rows),
    "target_itself": lambda target, rows: DraftModelDrafter(target, rows),
}


def decoder(model: PreTrainedModel, drafter: str = "none", *, rows: int = 4, k: int = 4, verifier: Verify = verify) -> Decoder:
    """A loop over a tiny model with one of `DRAFTERS`."""
    proposing = DRAFTERS[drafter](model, rows)
    ends = frozenset() if model.generation_config.eos_token_id is None else frozenset({EOS})
    width = 0 if proposing is None else k
    return Decoder(RowForward(model, rows), tiny_tokenizer(), ends, proposing, width, hooks=Hooks(verify=verifier))


def job(index: int, token_ids: Sequence[int], max_tokens: int = 24, **params: object) -> Job:
    """A request whose key is its index; greedy unless a temperature is given."""
    return Job(index, tuple(token_ids), SamplingParams(max_tokens, **({"temperature": 0.0} | params)), (index, 7))


def run_all(loop: Decoder, jobs: Sequence[Job], *, traced: bool = False) -> list[Running]:
    """All requests, in the order of the jobs."""
    done = {running.job.index: running for running in loop.run(jobs, traced=traced)}
    return [done[each.index] for each in jobs]
