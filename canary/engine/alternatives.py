"""The bank's alternative rows a_k, reduced to two numbers per token: a_k(x)/p(x) and TV(p, a_k) (statistics 3.1, 0b.6).

Every ratio is a bet: its mean under the target row is at most 1, whatever the drafter reports. Nothing here may look at a draft
token that was drawn from a dense row, only at the row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from canary.engine.sampling import mass

TYPICAL_THRESHOLD = 0.1
COLD_EXPONENT = 1.5
HOT_EXPONENT = 0.67
SHARED_NOISE_SCALE = 0.3
SHARED_NOISE_CAP = 20.0
RATIO_LIMIT = 1e9
_MIX = 1 / RATIO_LIMIT


class Alternative(NamedTuple):
    """One alternative at N emitted tokens: a(x)/p(x) and TV(p, a) (None: not asked for), [N] float64 each."""

    ratio: Tensor
    tv: Tensor | None


def distance(left: Tensor, right: Tensor) -> Tensor:
    """Total variation of two rows, half the sum of the absolute differences: [N, V] each to [N] float64."""
    return mass((left - right).abs_()) / 2


def log_ratio(ratio: Tensor) -> Tensor:
    """Logarithm of a bet, within +-ln(1e9).

    The lower limit mixes 1e-9 of the target row into the alternative, (1-e) a + e p, so that it cannot push the mean above 1 as a
    plain clip would; the upper one only lowers it.
    """
    return ((1 - _MIX) * ratio + _MIX).clamp_max(RATIO_LIMIT).log()


def over(numerator: Tensor, target: Tensor) -> Tensor:
    """a(x)/p(x) where p(x) may be 0: then 0/0 says nothing (1) and the rest is beyond every limit."""
    impossible = torch.where(numerator > 0, RATIO_LIMIT, 1.0)
    return torch.where(target > 0, numerator / target, impossible)


def of_target(target: Tensor, p: Tensor, want_tv: bool) -> dict[str, Alternative]:
    """cold (a ~ p^1.5) and hot (a ~ p^0.67).

    Args:
        target: [N, V] processed rows.
        p: [N] float64, the emitted token's entry.
    """
    logs = target.log()
    found = {}
    for name, exponent in (("cold", COLD_EXPONENT), ("hot", HOT_EXPONENT)):
        powered = (logs * exponent).exp_()
        total = mass(powered)
        tv = distance(powered.div_(total[:, None].to(target.dtype)), target) if want_tv else None
        found[name] = Alternative(over(p**exponent / total, p), tv)
    return found


def of_argmax(p: Tensor, is_best: Tensor, largest: Tensor) -> Alternative:
    """All mass on the row's first maximum.

    Args:
        p: [N] float64, the emitted token's entry.
        is_best: [N] bool, the emitted token is the argmax.
        largest: [N] float64, the row's maximum.
    """
    return Alternative(over(is_best.to(p.dtype), p), 1 - largest)


def of_row(row: Tensor, target: Tensor, tokens: Tensor, p: Tensor, want_tv: bool) -> Alternative:
    """Another row as it stands: `unfiltered` (mass off the target's support is simply lost) or `shift`.

    Args:
        row, target: [N, V].
        tokens: [N] int64, emitted.
        p: [N] float64, the emitted token's entry of `target`.
    """
    a = row.gather(1, tokens[:, None])[:, 0].to(torch.float64)
    return Alternative(over(a, p), distance(row, target) if want_tv else None)


def of_one_hot(p: Tensor, p_draft: Tensor, rest: Tensor, is_draft: Tensor) -> dict[str, Alternative]:
    """The draft-built alternatives where the draft row is one-hot: closed forms of `of_dense` that pass over nothing.

    Args:
        p: [N] float64, target probability of the emitted token.
        p_draft: [N] float64, that of the draft token.
        rest: [N] float64, that of all tokens but the draft, added up by itself.
        is_draft: [N] bool, the emitted token is the draft token.
    """
    zero = torch.zeros_like(p)
    certain = rest == 0  # nothing is left to recover with, so p itself stands in
    typical = p_draft > TYPICAL_THRESHOLD  # at or below it, typical acceptance is the exact rule
    only_draft = is_draft.to(p.dtype)
    without_draft = torch.where(certain, p, torch.where(is_draft, zero, p / rest))
    closed = {
        "draft": (only_draft, rest),
        "residual": (torch.where(is_draft, p + p * rest, p * rest), p_draft * rest),
        "over_rejection": (without_draft, torch.where(certain, zero, p_draft)),
        "typical": (torch.where(typical, only_draft, p), torch.where(typical, rest, zero)),
        "shared_noise": (p, zero),
    }
    return {name: Alternative(over(a, p), tv) for name, (a, tv) in closed.items()}


def of_dense(target: Tensor, draft: Tensor, tokens: Tensor, p: Tensor, want_tv: bool) -> dict[str, Alternative]:
    """The draft-built alternatives of a dense draft row.

    Args:
        target, draft: [N, V].
        tokens: [N] int64, emitted.
        p: [N] float64, the emitted token's entry of `target`.

    Returns:
        draft a = q; residual a = min(p,q) + (1-A) p; over_rejection a = norm(max(p-q,0)); typical a = q s + (1 - sum q s) res
        with s = 1 if p > .1 else min(1, p/q); shared_noise a = min(p,q) + (1-A) norm(res exp(-.3 min(q/res, 20))). 1-A is taken
        as the mass of max(p-q,0), so that p equal to q loses no digits.
    """

    def at(rows: Tensor) -> Tensor:
        return rows.gather(1, tokens[:, None])[:, 0].to(torch.float64)

    left = (target - draft).clamp_min_(0.0)  # [N, V] residual, not normalised
    common = target - left  # min(p, q)
    accepted = torch.where(target > TYPICAL_THRESHOLD, draft, common)  # q s
    lean = (draft / left.clamp_min(torch.finfo(left.dtype).tiny)).clamp_max_(SHARED_NOISE_CAP)
    noisy = lean.mul_(-SHARED_NOISE_SCALE).exp_().mul_(left)
    rejected, kept, noise = mass(left), mass(accepted), mass(noisy)  # [N]
    scales = _Scales(
        draft=1 / mass(draft).clamp_min(1.0),  # a reported row of more than unit mass would be no bet
        rejected=rejected,
        per_left=torch.where(rejected > 0, 1 / rejected, 0.0),
        fallback=(rejected == 0).to(torch.float64),
        accepted=1 / kept.clamp_min(1.0),
        lost=(1 - kept).clamp_min(0.0),
        per_noise=torch.where(noise > 0, rejected / noise, 0.0),
    )
    narrow = _combine(scales, p, at(draft), at(left), at(common), at(accepted), at(noisy))
    tvs: dict[str, Tensor] = {}
    if want_tv:
        wide_scales = _Scales(*(scale[:, None].to(target.dtype) for scale in scales))
        wide = _combine(wide_scales, target, draft, left, common, accepted, noisy)
        tvs = {name: distance(row, target) for name, row in wide.items()}
    return {name: Alternative(over(a, p), tvs.get(name)) for name, a in narrow.items()}


class _Scales(NamedTuple):
    """What the dense alternatives need of each row as a whole, [N] or [N, 1]."""

    draft: Tensor
    rejected: Tensor
    per_left: Tensor
    fallback: Tensor
    accepted: Tensor
    lost: Tensor
    per_noise: Tensor


def _combine(
    scales: _Scales, target: Tensor, draft: Tensor, left: Tensor, common: Tensor, accepted: Tensor, noisy: Tensor
) -> dict[str, Tensor]:
    """The dense alternatives, entry by entry: of whole rows ([N, V]) or of the emitted tokens ([N])."""
    back = left * scales.per_left + scales.fallback * target  # norm(max(p-q,0)), p where it has no mass
    return {
        "draft": draft * scales.draft,
        "residual": common + scales.rejected * target,
        "over_rejection": back,
        "typical": accepted * scales.accepted + scales.lost * back,
        "shared_noise": common + scales.per_noise * noisy,
    }
