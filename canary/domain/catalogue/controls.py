"""Catalogue group L and harmless variants: what looks odd and changes no output; calling one a fault is a false alarm."""

from __future__ import annotations

from canary.domain.catalogue.entry import ALL, DENSE, FaultEntry

CONTROLS: tuple[FaultEntry, ...] = (
    FaultEntry(
        "cold_draft_reported", "A3c", "The draft is drawn at half the temperature, and that very row is reported.",
        "huggingface/transformers 40976", "Acceptance changes, the output does not.", "nobody", seen_by=(), kinds=DENSE,
        harmless=True,
    ),
    FaultEntry(
        "draft_as_one_hot", "A9c",
        "The draft row is not passed on, and drafts are judged and recovered as if they were certain.",
        "vllm-project/vllm 40149", "Acceptance is lower, the output exact.", "nobody", seen_by=(), kinds=DENSE, harmless=True,
    ),
    FaultEntry(
        "ulp_noise", "L1", "One logit in eight of every verify row is moved by one unit in the last place.",
        "vllm-project/vllm 7627, 54506; ggml-org/llama.cpp 25618", "A few greedy texts part at near ties.", "nobody",
        seen_by=(), strata=ALL, harmless=True,
    ),
    FaultEntry(
        "bfloat16_rows", "L2", "Verify rows are rounded to bfloat16.",
        "huggingface/transformers 30413, 39421", "A few greedy texts part at near ties.", "nobody", seen_by=(), strata=ALL,
        harmless=True,
    ),
)  # fmt: skip
