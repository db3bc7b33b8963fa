"""Judge the drafts of a round together: block verification, pure tensor functions without a model or a loop over rows.

Sun, Mendlovic, Leviathan, Aharoni, Ro, Beirami, Suresh (arXiv 2403.10444, algorithm 2). What is emitted is distributed exactly as
by `verify`, and no verifier that draws from the same drafts accepts more of them on average. It never looks past `draft_len`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from canary.engine.sampling import INVALID, draw, mass
from canary.engine.verify import Verified, verify


class BlockRule(NamedTuple):
    """What the drafts of a round say about how many of them are accepted.

    Args:
        weights: [B, k+1] float64, w_0 = 1 and w_i = min(1, w_{i-1} p_i(d_i) / q_i(d_i)): the probability, given the first i
            drafts, that at least i are accepted. Beyond `draft_len` the last one is repeated.
        thresholds: [B, k] float64, h_i of the first i drafts; NaN beyond `draft_len`.
    """

    weights: Tensor
    thresholds: Tensor


def block_rule(target_probs: Tensor, draft_tokens: Tensor, draft_len: Tensor, draft_probs: Tensor) -> BlockRule:
    """Weights and thresholds from the rows alone.

    With S_i the mass of max(w_i p - q, 0) at the position after i drafts, h_i = S_i / (S_i + 1 - w_i) for i below the number of
    drafts, and h_i = w_i for the last. Where w_i is 1, h_i is 1 also if S_i is 0: then it stops there with probability 0.

    Args:
        target_probs: [B, k+1, V] processed rows; row i is the target's distribution after i drafts.
        draft_tokens: [B, k] int64.
        draft_len: [B] int64, 0 to k.
        draft_probs: [B, k, V] rows that the drafts were drawn from.
    """
    known = draft_tokens.clamp_min(0)[..., None]  # [B, k, 1]
    target = target_probs[:, :-1].gather(-1, known)[..., 0].to(torch.float64)  # [B, k]
    draft = draft_probs.gather(-1, known)[..., 0].to(torch.float64)
    ratios = torch.where(draft == 0, torch.zeros_like(target), target / draft)
    ratios = torch.where(draft_tokens < 0, torch.nan, ratios)
    weights, thresholds = [torch.ones_like(target[:, 0])], []
    width = draft_tokens.shape[1]
    for column in range(1, width + 1):
        inside = column <= draft_len  # [B]
        weight = torch.where(inside, (weights[-1] * ratios[:, column - 1]).clamp_max(1.0), weights[-1])
        weights.append(weight)
        if column == width:
            threshold = weight
        else:
            left = mass(_left(target_probs[:, column], draft_probs[:, column], weight))
            earlier = torch.where(weight == 1, torch.where(left.isnan(), left, 1.0), left / (left + 1 - weight))
            threshold = torch.where(column == draft_len, weight, earlier)
        thresholds.append(torch.where(inside, threshold, torch.nan))
    return BlockRule(torch.stack(weights, 1), torch.stack(thresholds, 1))


def accepted_by(thresholds: Tensor, accept_uniforms: Tensor) -> Tensor:
    """The largest i with u_i < h_i, 0 if there is none: [B, k] each to [B] int64; a NaN accepts nothing."""
    columns = torch.arange(1, thresholds.shape[1] + 1, device=thresholds.device)
    return torch.where(accept_uniforms < thresholds, columns, 0).amax(1)


def verify_block(
    target_probs: Tensor,
    draft_tokens: Tensor,
    draft_len: Tensor,
    draft_probs: Tensor | None,
    accept_uniforms: Tensor,
    next_uniforms: Tensor,
) -> Verified:
    """Accept the longest prefix whose own threshold is met, and draw one more token.

    After i drafts of more the token comes from norm(max(w_i p - q, 0)); where that has no mass, and after all of them, from p.
    With one-hot drafts w_i is the product of the p(d), S_i = w_i - w_{i+1}, and i drafts are accepted with
    probability w_i - w_{i+1}: that is token rejection draw for draw, so `verify` judges them.

    Args:
        target_probs, draft_tokens, draft_len, draft_probs, accept_uniforms, next_uniforms: see `verify.verify`.

    Returns:
        `accept_threshold` is h_i. All rows of the drafts have to be read, so a broken one anywhere among them is `INVALID`.
    """
    width = target_probs.shape[1]
    if draft_probs is None or width == 1:
        return verify(target_probs, draft_tokens, draft_len, draft_probs, accept_uniforms, next_uniforms)
    weights, thresholds = block_rule(target_probs, draft_tokens, draft_len, draft_probs)
    num_accepted = accepted_by(thresholds, accept_uniforms)  # [B]

    batch = torch.arange(len(target_probs), device=target_probs.device)
    row = target_probs[batch, num_accepted]  # [B, V]
    residual = _left(row, draft_probs[batch, num_accepted.clamp_max(width - 2)], weights[batch, num_accepted])
    residual = torch.where((num_accepted < draft_len)[:, None], residual, row)
    weighed = torch.where(residual.sum(1, keepdim=True) == 0, row, residual)
    next_token = draw(weighed, next_uniforms[batch, num_accepted]).tokens
    inside = torch.arange(width - 1, device=target_probs.device) < draft_len[:, None]  # [B, k]
    broken = (inside & thresholds.isnan()).any(1)
    return Verified(num_accepted, torch.where(broken, INVALID, next_token), thresholds.to(target_probs.dtype))


def _left(target: Tensor, draft: Tensor, weight: Tensor) -> Tensor:
    """max(w p - q, 0): [B, V], [B, V] and [B] to [B, V]."""
    return (target * weight[:, None].to(target.dtype)).sub_(draft).clamp_min_(0.0)
