"""The reference: one plain forward of the unmodified transformers model over prompt and answer, compared with our rows.

Its attention, its cache (none) and its processing are transformers' own; nothing of the engine's sampling may be used here, or
both sides would share a bug.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, TemperatureLogitsWarper

from canary.domain.pairs import Columns
from canary.engine import trace


@torch.inference_mode()
def score(
    model: PreTrainedModel, prompt_ids: Sequence[int], token_ids: Sequence[int], engine_logits: torch.Tensor, temperature: float
) -> Columns:
    """Compare the engine's rows with the reference's.

    Args:
        model: the target as transformers loads it.
        prompt_ids: at least one token.
        token_ids: the answer, T tokens.
        engine_logits: raw rows that the answer's tokens came from, [T, V].
        temperature: of the request; 0 (greedy) compares at temperature 1.

    Returns:
        `ROW_COLUMNS`: total variation between the two softmax rows at the temperature, and the reference's largest logit minus
        that of the emitted token.
    """
    if not token_ids:
        return trace.pack({"row_tv": torch.zeros(0), "logit_gap": torch.zeros(0)})
    ids = torch.tensor([[*prompt_ids, *token_ids[:-1]]], device=model.device)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(token_ids)).logits[0].float()  # [T, V]
    warp = TemperatureLogitsWarper(float(temperature) if temperature > 0 else 1.0)
    reference, engine = (warp(ids, rows).softmax(-1) for rows in (logits, engine_logits.float()))
    gap = trace.logit_gap(logits, torch.tensor(list(token_ids), device=logits.device))
    return trace.pack({"row_tv": trace.row_distance(engine, reference), "logit_gap": gap})
