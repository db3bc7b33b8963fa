"""Memory: weights once, packed copies beside them, caches at full context, the drafter on top."""

from __future__ import annotations

from dataclasses import replace

import torch

from canary.engine.drafters.build import Built
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.transfers import Transfers
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
    drafter = DraftModelDrafter(tiny_model(eos=False), 4)
    built = Built(drafter, {}, (drafter.rows.view,), drafter.rows)
    alone, drafting = report(model, rows, None), report(model, rows, built)
    assert (alone["drafter"], alone["drafter_cache"]) == (0.0, 0.0)
    assert drafting["drafter"] >= weights
    assert drafting["drafter_cache"] == drafting["target_cache"] == cache_bytes(rows)
    assert drafting["total"] == device_bytes(torch.device("cpu")) > weights
    away = report(model, rows, replace(built, transfers=Transfers(rows.device, torch.device("cuda:0"))))
    assert (away["drafter"], away["drafter_cache"]) == (0.0, 0.0), "it takes nothing from the target's device"
    assert away["drafter_elsewhere"] == drafting["drafter"] + drafting["drafter_cache"]
