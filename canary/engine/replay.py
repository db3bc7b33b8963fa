"""An answer once more, token by token through the loop's own k = 0 step: the baseline's kernels over the candidate's text.

A prefill has another rounding; here rows differ by verification alone, so that what speculation leaves behind late in an answer
(stale keys after a rejection) shows. It draws nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from canary.domain.pairs import Columns
from canary.domain.traffic import SamplingParams
from canary.engine import trace
from canary.engine.forward import RowForward

REPLAY_SHARE = 0.1  # of the requests; a replay costs as many target steps as the answer has tokens


def is_chosen(key: bytes) -> bool:
    """Whether a request is replayed: a salted hash of its random key, so that a retry chooses alike.

    Args:
        key: of `flow.ports.ArmRequest`.
    """
    return int.from_bytes(hashlib.blake2b(key + b"replay", digest_size=8).digest()) < REPLAY_SHARE * 2**64


@torch.inference_mode()
def replay(
    target: RowForward, prompt_ids: Sequence[int], token_ids: Sequence[int], engine_logits: torch.Tensor, params: SamplingParams
) -> torch.Tensor:
    """Compare the candidate's rows with those of k = 0 on the same text.

    Args:
        target: no request may be running on it; its first row is used and left empty.
        prompt_ids: at least one token.
        token_ids: the answer, T tokens.
        engine_logits: raw rows that the answer's tokens came from, [T, V].
        params: of the request; greedy compares at temperature 1.

    Returns:
        Total variation between the two softmax rows of every token, [T] float64.

    Raises:
        ValueError: a request is running on the target.
    """
    if any(target.lengths):
        raise ValueError("a replay needs the target's rows to itself")
    temperature = params.temperature if params.temperature > 0 else 1.0
    found = torch.empty(len(token_ids), dtype=torch.float64)
    target.cache.reserve(len(prompt_ids) + len(token_ids))
    try:
        logits = target.prefill(0, prompt_ids)  # [V]
        for at in range(len(token_ids)):
            if at > 0:
                logits = target.step(torch.tensor([[token_ids[at - 1]]], device=target.device))[0, 0]  # [V]
                target.lengths[0] += 1
            both = (torch.stack([engine_logits[at], logits]).float() / temperature).softmax(-1)  # [2, V]
            found[at] = trace.row_distance(both[:1], both[1:])[0]
    finally:
        target.lengths[0] = 0
    return found


def with_replay(rows: Columns, distances: torch.Tensor) -> Columns:
    """Scored rows with the column `replay_tv` beside the others.

    Args:
        distances: from `replay`, [rows.num_tokens].
    """
    return Columns(rows.num_tokens, {**rows.data, **trace.pack({"replay_tv": distances}).data})
