"""Judge draft tokens against target rows: pure tensor functions, no model, no loop over rows, no random state.

Token rejection: Leviathan, Kalman, Matias (2211.17192, algorithm 1) and Chen et al. (2302.01318, algorithm 2). Whatever the
drafter proposed, the emitted tokens are exact draws from the target rows, provided that the drafts were drawn from `draft_probs`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from canary.engine.sampling import INVALID, argmax, draw


class Verified(NamedTuple):
    """What became of one round.

    Args:
        num_accepted: [B] int64, the accepted prefix of the drafts.
        next_token: [B] int64, the recovered token after a rejection, else the bonus (or plain) token. `INVALID` where a row, a
            draft or a draft row that had to be read was not a distribution: the request must fail, whatever `num_accepted` says.
        accept_threshold: [B, k] min(1, p/q) of every draft token (block: h, see `verify_block`), NaN beyond `draft_len`.
        accept_uniforms: [B, k], what the drafts were judged with where that is not what was handed over; see `verify_coupled`.
    """

    num_accepted: Tensor
    next_token: Tensor
    accept_threshold: Tensor
    accept_uniforms: Tensor | None = None


class Verify(Protocol):
    """The signature of `verify`, which faults wrap."""

    def __call__(
        self,
        target_probs: Tensor,
        draft_tokens: Tensor,
        draft_len: Tensor,
        draft_probs: Tensor | None,
        accept_uniforms: Tensor,
        next_uniforms: Tensor,
    ) -> Verified: ...


def verify(
    target_probs: Tensor,
    draft_tokens: Tensor,
    draft_len: Tensor,
    draft_probs: Tensor | None,
    accept_uniforms: Tensor,
    next_uniforms: Tensor,
) -> Verified:
    """Accept the longest valid prefix and draw one more token.

    Draft i is accepted iff u_i < min(1, p(d)/q(d)). After a rejection the token comes from norm(max(p - q, 0)); where that has
    no mass (p equals q up to rounding, so a rejection had no probability) it comes from p. A draft with q(d) = 0 is rejected.

    Args:
        target_probs: [B, k+1, V] processed rows; row i is the target's distribution after i drafts.
        draft_tokens: [B, k] int64.
        draft_len: [B] int64, 0 to k; 0 is a plain draw from row 0.
        draft_probs: [B, k, V] rows that the drafts were drawn from, or None: the drafts are one-hot.
        accept_uniforms: [B, k] in [0, 1).
        next_uniforms: [B, k+1] in [0, 1); only the column of the position that is drawn is used.
    """
    num_rows, width, _ = target_probs.shape
    columns = torch.arange(width - 1, device=target_probs.device)
    inside = columns < draft_len[:, None]  # [B, k]
    known = draft_tokens.clamp_min(0)[..., None]  # [B, k, 1]
    target = target_probs[:, :-1].gather(-1, known)[..., 0]  # [B, k]
    if draft_probs is None:
        threshold = target.clamp_max(1.0)
    else:
        draft = draft_probs.gather(-1, known)[..., 0]  # [B, k]
        threshold = torch.where(draft == 0, torch.zeros_like(target), target / draft).clamp_max(1.0)
    threshold = torch.where(draft_tokens < 0, torch.nan, threshold)
    num_accepted = (inside & (accept_uniforms < threshold)).to(torch.int64).cumprod(1).sum(1)  # [B]

    batch = torch.arange(num_rows, device=target_probs.device)
    rejected = num_accepted < draft_len  # [B]
    row = target_probs[batch, num_accepted]  # [B, V]
    if width > 1:
        row = _recover(row, rejected, num_accepted.clamp_max(width - 2), draft_tokens, draft_probs)
    next_token = draw(row, next_uniforms[batch, num_accepted]).tokens
    # A NaN threshold rejects, so only the judged prefix can hide one.
    judged = inside & (columns <= num_accepted[:, None])
    broken = (judged & threshold.isnan()).any(1)
    threshold = torch.where(inside, threshold, torch.nan)
    return Verified(num_accepted, torch.where(broken, INVALID, next_token), threshold)


def verify_greedy(target_logits: Tensor, draft_tokens: Tensor, draft_len: Tensor) -> Verified:
    """Accept drafts while they equal the target's argmax; equals `verify` on the one-hot rows of the argmax.

    Args:
        target_logits: [B, k+1, V] raw logits, any float type.
        draft_tokens: [B, k] int64.
        draft_len: [B] int64, 0 to k.

    Returns:
        `accept_threshold` is 1 where the draft is the argmax and 0 elsewhere.
    """
    width = target_logits.shape[1]
    best, value = (found.view(-1, width) for found in argmax(target_logits.flatten(0, 1)))  # [B, k+1]
    inside = torch.arange(width - 1, device=best.device) < draft_len[:, None]  # [B, k]
    equal = draft_tokens == best[:, :-1]
    num_accepted = (inside & equal).to(torch.int64).cumprod(1).sum(1)
    read = torch.arange(width, device=best.device) <= num_accepted[:, None]  # [B, k+1]
    broken = (read & ~torch.isfinite(value)).any(1)
    next_token = best.gather(1, num_accepted[:, None])[:, 0]
    threshold = torch.where(inside, equal.to(torch.float32), torch.nan)
    return Verified(num_accepted, torch.where(broken, INVALID, next_token), threshold)


def _recover(row: Tensor, rejected: Tensor, at: Tensor, draft_tokens: Tensor, draft_probs: Tensor | None) -> Tensor:
    """The weights that the next token is drawn from: the residual where the draft at `at` was rejected, else the target row.

    Args:
        row: [B, V] target rows at the drawn position, a fresh tensor.
        rejected: [B] bool.
        at: [B] int64 column of the judged draft.
    """
    if draft_probs is None:
        draft = draft_tokens.gather(1, at[:, None]).clamp_min(0)  # [B, 1]
        kept = row.gather(1, draft)
        residual = row.scatter(1, draft, torch.where(rejected[:, None], torch.zeros_like(kept), kept))
    else:
        batch = torch.arange(len(row), device=row.device)
        residual = (row - draft_probs[batch, at]).clamp_min_(0.0)
        residual = torch.where(rejected[:, None], residual, row)
    return torch.where(residual.sum(1, keepdim=True) == 0, row, residual)
