"""What a round says for itself whose drafts were judged together: its weights, and how many drafts were accepted.

Like `judged`, all of it comes from the rows and the recorded uniforms; nothing here draws a number.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from canary.engine.verify_block import accepted_by, block_rule

# A token beyond drafts of weight 0 cannot be emitted; where an engine does it all the same, its rows must stay finite.
_LEAST_WEIGHT = 1e-20


class Together(NamedTuple):
    """What `BLOCK_COLUMNS` are made of at N emitted tokens; what is of a whole round at its first position.

    Args:
        weight: [N] float64, above 0.
        pit: [N] float64, nan off first positions and where nothing was drafted.
        accepted, rule: [N] int64, -1 there.
    """

    weight: Tensor
    pit: Tensor
    accepted: Tensor
    rule: Tensor

    def columns(self) -> dict[str, Tensor]:
        """`BLOCK_COLUMNS`, [N] each."""
        return {
            "block_weight": self.weight,
            "block_pit": self.pit,
            "block_accepted": self.accepted,
            "block_rule": self.rule,
        }


def together(
    num_accepted: Tensor,
    target_probs: Tensor,
    draft_tokens: Tensor,
    draft_len: Tensor,
    draft_probs: Tensor | None,
    accept_uniforms: Tensor,
    pit_uniforms: Tensor,
    at: tuple[Tensor, Tensor],
) -> Together:
    """Of one round of B requests, what belongs to its N emitted tokens.

    Given the drafts, i of them are accepted with probability h_i (1 - h_{i+1}) ... (1 - h_k), h_0 = 1: from the last draft down,
    the first threshold that is met decides. So P(at most i) = (1 - h_{i+1}) ... (1 - h_k).

    Args:
        num_accepted: [B] int64, by the verifier.
        target_probs, draft_tokens, draft_len, draft_probs, accept_uniforms: see `verify.verify`.
        pit_uniforms: [B] float64, the V of the PIT of the accepted number.
        at: ([N], [N]) int64, request and position of every emitted token.
    """
    owner, position = at
    ones = torch.ones(len(owner), dtype=torch.float64, device=owner.device)
    if draft_probs is None:
        nowhere = torch.full_like(owner, -1)
        return Together(ones, ones * torch.nan, nowhere, nowhere)
    weights, thresholds = block_rule(target_probs, draft_tokens, draft_len, draft_probs)
    missed = (1 - thresholds.nan_to_num(0.0)).flip(1).cumprod(1).flip(1)  # [B, k], column i: none of h_{i+1} ... h_k is met
    at_most = torch.cat((missed, torch.ones_like(missed[:, :1])), 1)  # [B, k+1], column i: P(at most i)
    below = torch.cat((torch.zeros_like(missed[:, :1]), missed), 1)  # [B, k+1], column i: P(fewer than i)
    low, high = (table.gather(1, num_accepted[:, None])[:, 0] for table in (below, at_most))
    pit = low + pit_uniforms * (high - low)
    first = (position == 0) & (draft_len[owner] > 0)
    return Together(
        weight=weights[owner, position].clamp_min(_LEAST_WEIGHT),
        pit=torch.where(first, pit[owner], torch.nan),
        accepted=torch.where(first, num_accepted[owner], -1),
        rule=torch.where(first, accepted_by(thresholds, accept_uniforms)[owner], -1),
    )
