"""A route whose target calls tools: a real Llama whose next token depends on the last alone, so that its answers are known."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from canary.domain.live_policy import Structured
from canary.domain.policy import Drafter, Policy
from canary.domain.traffic import Prompt
from canary.flow.walk.mirror import read_request
from tests.engine.tiny import EOS, save_tiny
from tests.flow import tiny_walk

CHARACTERS = [chr(c) for c in range(32, 127)]
PIECES = [
    "<tool_call>",
    '{"name": "',
    'weather", "arguments": {"city": "',
    'clock", "arguments": {"zone": "',
    "Oslo",
    "Rome",
    '"}}',
    '"}',
    "</tool_call>",
]
FIRST = 3 + len(CHARACTERS)
SIZE = 128  # hidden size: at least one place per token
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Says the {key}.",
            "parameters": {
                "type": "object",
                "required": [key],
                "additionalProperties": False,
                "properties": {key: {"type": "string", "pattern": "^[A-Z][a-z]+$"}},
            },
        },
    }
    for name, key in (("weather", "city"), ("clock", "zone"))
]
TEMPLATE = (
    "{% if tools %}{{ '<s>tools ' + (tools | tojson) + '</s>' }}{% endif %}"
    "{% for m in messages %}{{ '<s>' + m['role'] + ' ' + (m['content'] or '') }}"
    "{% for c in m['tool_calls'] or [] %}{{ c['function']['name'] + (c['function']['arguments'] | tojson) }}{% endfor %}"
    "{{ '</s>' }}{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant ' }}{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Characters, and the pieces that the target answers with."""
    words = {"<pad>": 0, "<s>": 1, "</s>": EOS} | {w: at for at, w in enumerate([*CHARACTERS, *PIECES], start=3)}
    raw = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )
    made.chat_template = TEMPLATE
    return made


def caller(weather: float, whole: float) -> LlamaForCausalLM:
    """A model that calls one of two tools.

    Args:
        weather: probability of the first tool, and of the first city.
        whole: probability that it closes the call as it should.
    """
    config = LlamaConfig(
        vocab_size=FIRST + len(PIECES),
        hidden_size=SIZE,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=SIZE // 2,
        max_position_embeddings=1024,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    call, name, first, second, oslo, rome, closed, broken, end = range(FIRST, FIRST + len(PIECES))
    follows = {
        call: {name: 1.0},
        name: {first: weather, second: 1 - weather},
        **{tool: {oslo: weather, rome: 1 - weather} for tool in (first, second)},
        **{city: {closed: whole, broken: 1 - whole} for city in (oslo, rome)},
        **{closing: {end: 1.0} for closing in (closed, broken)},
        end: {EOS: 1.0},
    }
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(config.vocab_size, SIZE))
        model.lm_head.weight.fill_(-30 / SIZE**0.5)
        for last in range(config.vocab_size):
            for token, share in follows.get(last, {call: 1.0}).items():
                model.lm_head.weight[token, last] = log(share) / SIZE**0.5  # the norm turns a place's 1 into the root of the size
    model.generation_config.eos_token_id = EOS
    model.generation_config.pad_token_id = 0
    return model.eval()


def save(folder: Path) -> Path:
    """A target that breaks a call now and then, and a draft that is mostly right."""
    save_tiny(folder / "target", caller(0.6, 0.95), tokenizer())
    save_tiny(folder / "draft", caller(0.5, 0.9), tokenizer())
    return folder


def policy(folder: Path, structured: Structured | None) -> Policy:
    """The route's policy."""
    plain = tiny_walk.policy(folder / "target", max_tokens=16)
    drafter = Drafter("draft_model", 3, model=str(folder / "draft"))
    subject, shadow = replace(plain.subject, drafter=drafter), replace(plain.shadow, batch_size=8)
    return replace(plain, subject=subject, shadow=shadow, structured=structured)


def body(number: int, temperature: float) -> bytes:
    """A chat that called a tool before."""
    asked = [
        {"role": "user", "content": f"question {number}"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "Rome"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        {"role": "user", "content": "and the weather?"},
    ]
    return json.dumps({"messages": asked, "tools": TOOLS, "temperature": temperature, "max_tokens": 16}).encode()


def prompts(count: int) -> list[Prompt]:
    """Mirrored requests, greedy and sampled in turn."""
    given = {"route": tiny_walk.ROUTE, "endpoint": "chat/completions", "source": "test"}
    return [read_request(body(n, float(n % 2)), **given, request_id=f"r{n}") for n in range(count)]
