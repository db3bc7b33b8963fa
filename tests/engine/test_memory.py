"""Memory: weights once, packed copies beside them, caches at full context, the drafter on top."""

from __future__ import annotations

import torch

from canary.engine.forward import RowForward
from canary.engine.memory import cache_bytes, device_bytes, report, weight_bytes
from tests.engine.tiny import tiny_model


def test_weights_count_once_and_caches_at_full_context() -> None:
    model = tiny_model(eos=False)
    rows = RowForward(model, 4)
    config = model.config
    weights = sum(t.numel() * t.element_size() for t in {id(t): t for t in (*model.parameters(), *model.buffers())}.values())
    assert weight_bytes(model) == weight_bytes(model, model) == weights
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * width * 4
    assert cache_bytes(rows) == 4 * config.max_position_embeddings * per_token
    alone, drafting = report(model, rows, None), report(model, rows, RowForward(tiny_model(eos=False), 4))
    assert (alone["drafter"], alone["drafter_cache"]) == (0.0, 0.0)
    assert drafting["drafter"] >= weights
    assert drafting["drafter_cache"] == drafting["target_cache"] == cache_bytes(rows)
    assert drafting["total"] == device_bytes(torch.device("cpu")) > weights
