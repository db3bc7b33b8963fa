"""An attention function for rows of different lengths: the query heads of a group are folded into the query length.

Keys and values are never repeated, and the mask is used as it comes: it must never add a
causal pattern of its own to a given mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from canary.domain.errors import ModelError

NAME = "canary_rows"
_UNSUPPORTED = ("softcap", "position_bias", "s_aux", "sliding_window")


def row_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of `query` [B, H, T, D] over `key`, `value` [B, H_kv, S, D], as `transformers` calls it.

    Args:
        attention_mask: None for a prefill (causal, S = T) or one query that sees every key; else the mask of `cache.step_mask`,
            boolean or added, [B, 1, G * T, S] with G = H / H_kv; row g * T + t belongs to query head g of each group.

    Returns:
        Output [B, T, H, D] and no weights.

    Raises:
        ModelError: the model's attention does more than scaled dot products.
    """
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ModelError(
                f"the model's attention uses {name}, which the engine does not implement",
                where="subject.target",
                remedy="Choose a model with plain full attention.",
            )
    batch, heads, width, _ = query.shape
    groups = heads // key.shape[1]
    if attention_mask is None and width > 1:
        out = scaled_dot_product_attention(
            query, key, value, scale=scaling, is_causal=True, enable_gqa=groups > 1
        )  # [B, H, T, D]
    else:
        folded = query.reshape(batch, key.shape[1], groups * width, query.shape[-1])  # [B, H_kv, G * T, D]
        out = scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
        out = out.reshape(batch, heads, width, value.shape[-1])  # [B, H, T, D]
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, row_attention)
