"""Token rejection of one-hot drafts by the very draw that the target would have made without them.

Each position is drawn from the target's row with its own number, and a draft is accepted iff it is what was drawn: so an answer's
tokens do not depend on what was drafted, nor on how much. Drafts with rows of their own go to `verify`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from canary.engine.sampling import INVALID, draw
from canary.engine.verify import Verified, verify


def verify_coupled(
    target_probs: Tensor,
    draft_tokens: Tensor,
    draft_len: Tensor,
    draft_probs: Tensor | None,
    accept_uniforms: Tensor,
    next_uniforms: Tensor,
) -> Verified:
    """Accept the drafts that were drawn anyway; the arguments are those of `verify`.

    The law is that of token rejection (Leviathan, Kalman, Matias, 2211.17192, algorithm 1, with q one-hot): a draw x ~ p equals
    the draft d with probability p(d), and given that it does not it is a draw from norm(max(p - q, 0)). With w the accept
    uniform, algorithm 1 would have judged the draft with p(d) w where it was accepted, else with p(d) + (1 - p(d)) w: that number
    is uniform, below p(d) iff the draft was accepted, and given that independent of the recovered token.

    Returns:
        `accept_uniforms` holds those numbers.
    """
    if draft_probs is not None:
        return verify(target_probs, draft_tokens, draft_len, draft_probs, accept_uniforms, next_uniforms)
    batch, width, size = target_probs.shape
    drawn = draw(target_probs.reshape(batch * width, size), next_uniforms.reshape(-1)).tokens.view(batch, width)  # [B, k+1]
    inside = torch.arange(width - 1, device=drawn.device) < draft_len[:, None]  # [B, k]
    # A row that cannot be drawn from equals no draft, so the round ends there and the request fails.
    equal = inside & (draft_tokens == drawn[:, :-1]) & (drawn[:, :-1] != INVALID)
    num_accepted = equal.to(torch.int64).cumprod(1).sum(1)  # [B]
    next_token = drawn.gather(1, num_accepted[:, None])[:, 0]
    threshold = target_probs[:, :-1].gather(-1, draft_tokens.clamp_min(0)[..., None])[..., 0].clamp_max(1.0)  # [B, k]
    threshold = torch.where(inside & (draft_tokens >= 0), threshold, torch.nan)
    return Verified(num_accepted, next_token, threshold, _judged_with(threshold, equal, accept_uniforms))


def _judged_with(threshold: Tensor, accepted: Tensor, uniforms: Tensor) -> Tensor:
    """Uniform numbers, [B, k] float64, below the threshold exactly where the draft was accepted."""
    edge = threshold.to(torch.float64).nan_to_num(0.0)
    below = torch.minimum(edge * uniforms, torch.nextafter(edge, torch.zeros_like(edge)))
    return torch.where(accepted, below, torch.maximum(edge + (1 - edge) * uniforms, edge))
