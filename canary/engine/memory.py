"""What an engine needs in memory: weights and caches of target and drafter, and what the device has.

It counts what will be held, from the models' own shapes; nothing is allocated to find out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from torch import nn

from canary.engine.drafters.build import Built
from canary.engine.forward import RowForward
from canary.engine.packed import packed_layers


def weight_bytes(*modules: nn.Module) -> int:
    """Bytes of all parameters and buffers of modules that may share them, each once, and of the packed copies beside them."""
    held = {id(t): t for module in modules for t in (*module.parameters(), *module.buffers())}
    return sum(t.nbytes for t in held.values()) + sum(layer.num_bytes for layer in packed_layers(*modules))


def cache_bytes(rows: RowForward) -> int:
    """Bytes of keys and values with every row at the model's full context."""
    config = rows.view.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * heads * width * rows.view.dtype.itemsize
    return int(rows.num_rows * rows.context * per_token)


def device_bytes(device: torch.device) -> int:
    """Memory that the device has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def report(model: nn.Module, rows: RowForward, built: Built | None) -> Mapping[str, float]:
    """See `flow.ports.EngineInfo.memory`.

    Args:
        model: the target as loaded; the scorer keeps it beside the loop's view of it.
        rows: the target's loop.
        built: the drafter; None without one. What it keeps on a device of its own is `drafter_elsewhere` and takes nothing from
            the target's device.
    """
    weights = 0.0 if built is None else float(weight_bytes(*built.weights))
    cache = 0.0 if built is None or built.rows is None else float(cache_bytes(built.rows))
    beside = built is None or built.transfers is None
    return {
        "target": float(weight_bytes(model, rows.view, *rows.packed)),
        "target_cache": float(cache_bytes(rows)),
        "drafter": weights if beside else 0.0,
        "drafter_cache": cache if beside else 0.0,
        **({} if beside else {"drafter_elsewhere": weights + cache}),
        "total": float(device_bytes(rows.device)),
    }
