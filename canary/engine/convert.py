"""A GGUF file of the llama family into an ordinary Hugging Face model directory, in bf16.

It reads with the `gguf` library alone: transformers' own GGUF loading wants a further package and then refuses to save.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from canary.domain.errors import ModelError

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}


def convert(source: Path, folder: Path, eos_token_id: int, report: Callable[[str, float], None]) -> None:
    """Write configuration, bf16 weights and tokenizer into an existing folder.

    Args:
        source: the GGUF file.
        eos_token_id: what ends an answer; GGUF files do not say it reliably.
        report: called with what is being done and the share that is done, 0 to 1.

    Raises:
        ModelError: the file is not a llama model, or holds a tensor that a llama does not have.
    """
    report("reading the tokenizer", 0.0)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    report("reading the weights", 0.2)
    reader = GGUFReader(source)
    config = _config(source, reader, len(tokenizer))
    config.eos_token_id = eos_token_id
    model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    missing, unknown = model.load_state_dict(_weights(source, reader, config, report), strict=False)
    missing = [name for name in missing if not (config.tie_word_embeddings and name == "lm_head.weight")]
    if missing or unknown:
        raise ModelError(f"{source} lacks {missing[:3]} or has unknown {unknown[:3]}", where=str(source))
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=eos_token_id, pad_token_id=eos_token_id
    )
    report("writing the model directory", 0.95)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _config(source: Path, reader: GGUFReader, vocab_size: int) -> LlamaConfig:
    def read(name: str) -> Any:
        field = reader.get_field(name)
        if field is None:
            raise ModelError(f"the file does not say {name}", where=str(source), remedy="Use a GGUF file of the llama family.")
        return field.contents()

    if read("general.architecture") != "llama":
        raise ModelError(f"the file holds a {read('general.architecture')} model, not a llama", where=str(source))
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=read("llama.embedding_length"),
        intermediate_size=read("llama.feed_forward_length"),
        num_hidden_layers=read("llama.block_count"),
        num_attention_heads=read("llama.attention.head_count"),
        num_key_value_heads=read("llama.attention.head_count_kv"),
        max_position_embeddings=read("llama.context_length"),
        rms_norm_eps=read("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": read("llama.rope.freq_base")},
        bos_token_id=read("tokenizer.ggml.bos_token_id"),
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
    )


def _weights(
    source: Path, reader: GGUFReader, config: LlamaConfig, report: Callable[[str, float], None]
) -> dict[str, torch.Tensor]:
    found = {}
    for count, tensor in enumerate(reader.tensors):
        name = _hf_name(tensor.name)
        if name is None:
            if tensor.name == "rope_freqs.weight":  # derived from the configuration
                continue
            raise ModelError(f"tensor {tensor.name} is not one of a llama", where=str(source))
        values = dequantize(tensor.data, tensor.tensor_type)
        if name.endswith("q_proj.weight"):
            values = _unpermute(values, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            values = _unpermute(values, config.num_key_value_heads or config.num_attention_heads)
        found[name] = torch.from_numpy(np.array(values, dtype=np.float32)).to(torch.bfloat16)
        if count % 10 == 0:
            report("reading the weights", 0.3 + 0.65 * count / len(reader.tensors))
    return found


def _hf_name(name: str) -> str | None:
    if name in _TOP:
        return _TOP[name]
    block, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    return f"model.layers.{layer}.{_IN_LAYER[part]}" if block == "blk" and part in _IN_LAYER else None


def _unpermute(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo GGUF's order of rotary dimensions: interleaved pairs become two halves, per head."""
    split = values.reshape(num_heads, -1, 2, *values.shape[1:])  # [heads, D / 2, 2, hidden]
    return split.swapaxes(1, 2).reshape(values.shape)
