"""What a judged draft and a recovered token say by themselves, beside the union that the bank reads (statistics 3.4).

Thresholds and residuals are computed from the rows alone, never from what the verifier says it did; nothing here draws a number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from canary.domain.pairs import TILTS
from canary.engine.alternatives import SHARED_NOISE_CAP, SHARED_NOISE_SCALE, over
from canary.engine.sampling import argmax, block_sums, mass, mass_around

_TILT_FLOOR = 1e-6  # of a probability under a root: beyond it a tilt of the residual stops growing


def threshold(target_probs: Tensor, draft_probs: Tensor | None, draft_tokens: Tensor) -> Tensor:
    """min(1, p(d)/q(d)) of every judged draft: Leviathan, Kalman, Matias (2211.17192), algorithm 1.

    Args:
        target_probs: [N, V] processed rows.
        draft_probs: [N, V] reported draft rows, None for one-hot drafts, whose threshold is p(d).
        draft_tokens: [N] int64.

    Returns:
        [N] float64; 0 where q(d) is 0.
    """
    p = _at(target_probs, draft_tokens)
    if draft_probs is None:
        return p.clamp_max(1.0)
    q = _at(draft_probs, draft_tokens)
    return torch.where(q > 0, p / q, 0.0).clamp_max(1.0)


def draft_ranks(draft_probs: Tensor, draft_tokens: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Where a draft lies in the row that it is said to be drawn from.

    Args:
        draft_probs: [N, V] reported rows.
        draft_tokens: [N] int64.
        uniforms: [N] float64, the V of the randomised PIT.

    Returns:
        ([N], [N]) float64: the randomised PIT with the likeliest tokens first, equally likely ones as one, which is where a wrong
        temperature shows; and F(d-) + q(d)/2 by id, which is where a draft drawn by inverse CDF left its uniform.
    """
    blocks = block_sums(draft_probs)
    total = blocks.sum(1)
    sided = (
        (draft_probs - draft_probs.gather(1, draft_tokens[:, None])).sign_().mul_(draft_probs)
    )  # q above d, -q below, 0 at ties
    difference = mass(sided)
    unequal = mass(sided.abs_())
    above, equal = (difference + unequal) / 2, (total - unequal).clamp_min(0.0)
    q = _at(draft_probs, draft_tokens)
    left, right = mass_around(draft_probs, draft_tokens, blocks)
    return ((above + uniforms * equal) / total).clamp(0.0, 1.0), (left + q / 2) / (left + q + right)


def recovered(
    target_probs: Tensor, draft_probs: Tensor | None, draft_tokens: Tensor, tokens: Tensor, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """How a recovered token fits the residual norm(max(p - q, 0)), which it follows whatever the rejected draft was.

    Args:
        target_probs: [R, V] rows at rejected positions.
        draft_probs: [R, V], None for one-hot drafts: the residual is p without the draft.
        draft_tokens: [R] int64, rejected.
        tokens: [R] int64, recovered.
        uniforms: [R] float64, the V of the randomised PIT.

    Returns:
        ([R, len(TILTS)], [R]) float64: a(x)/res(x) of every tilt, 1 where it is inert and where the residual excludes x; and the
        randomised PIT by id. Where the residual is empty, p stands in, as in `verify`.
    """
    if draft_probs is None:
        left = target_probs.scatter(1, draft_tokens[:, None], 0.0)
    else:
        left = (target_probs - draft_probs).clamp_min_(0.0)
    blocks = block_sums(left)
    if bool((empty := blocks.sum(1) == 0).any()):
        left = torch.where(empty[:, None], target_probs, left)
        blocks = block_sums(left)
    below, above = mass_around(left, tokens, blocks)
    x = _at(left, tokens)
    total = below + x + above
    root = target_probs.clamp_min(_TILT_FLOOR).sqrt_()
    ratios = {
        "target_down": total / _at(root, tokens) / mass(left / root),
        "target_up": _at(root, tokens) * total / mass(root.mul_(left)),
        "argmax": _largest(left, tokens, x, total),
    }
    if draft_probs is not None:
        root = draft_probs.clamp_min(_TILT_FLOOR).sqrt_()
        ratios["draft_up"] = _at(root, tokens) * total / mass(root.mul_(left))
        ratios["shared_noise"] = _noisy(draft_probs, left, tokens, x, total)
    inert = torch.ones_like(x)
    possible = (x > 0)[:, None]
    stacked = torch.stack([ratios.get(name, inert) for name in TILTS], 1)
    return torch.where(possible, stacked, 1.0), ((below + uniforms * x) / total).clamp(0.0, 1.0)


def _largest(left: Tensor, tokens: Tensor, x: Tensor, total: Tensor) -> Tensor:
    """All of the residual's mass on its first maximum."""
    best, _ = argmax(left)
    return over((tokens == best).to(x.dtype) * total, x)


def _noisy(draft: Tensor, left: Tensor, tokens: Tensor, x: Tensor, total: Tensor) -> Tensor:
    """The residual as it is drawn with the draft's own noise: res * exp(-.3 min(q/res, 20)), see `alternatives.of_dense`."""
    noisy = (draft / left.clamp_min(torch.finfo(left.dtype).tiny)).clamp_max_(SHARED_NOISE_CAP)
    noisy = noisy.mul_(-SHARED_NOISE_SCALE).exp_().mul_(left)
    return over(_at(noisy, tokens) / mass(noisy).clamp_min(1e-300) * total, x)


def _at(rows: Tensor, tokens: Tensor) -> Tensor:
    """One entry per row, as float64: [N, V] and [N] to [N]."""
    return rows.gather(1, tokens[:, None])[:, 0].to(torch.float64)
