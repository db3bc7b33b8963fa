"""Faults in the judging of drafts and in what is drawn after them, as wrappers of `verify`.

They leave the rows alone, so that the trace records what a correct engine would have drawn from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from canary.engine.hooks import Hooks
from canary.engine.sampling import INVALID
from canary.engine.sampling import draw as clean_draw
from canary.engine.verify import Verified, Verify

Inject = Callable[[Hooks], Hooks]

SHIFTED_ROUNDS = 0.02
UNJUDGED = 0.1
GENEROUS = 1.1
LENIENT = 0.1
TYPICAL = (0.09, 0.3)  # Medusa's posterior threshold and alpha
BONUS_HEAT = 1.25


class Judged(NamedTuple):
    """The arguments of `verify`, by its own names."""

    target_probs: Tensor
    draft_tokens: Tensor
    draft_len: Tensor
    draft_probs: Tensor | None
    accept_uniforms: Tensor
    next_uniforms: Tensor


Change = Callable[[Verify, Judged], Verified]


def in_verify(change: Change) -> Inject:
    """The injection of a fault in `verify`."""

    def inject(hooks: Hooks) -> Hooks:
        def wrapped(
            target_probs: Tensor,
            draft_tokens: Tensor,
            draft_len: Tensor,
            draft_probs: Tensor | None,
            accept_uniforms: Tensor,
            next_uniforms: Tensor,
        ) -> Verified:
            given = Judged(target_probs, draft_tokens, draft_len, draft_probs, accept_uniforms, next_uniforms)
            return change(hooks.verify, given)

        return replace(hooks, verify=wrapped)

    return inject


# How drafts are accepted


def uniform_zero(verify: Verify, given: Judged) -> Verified:
    """Judge every draft with the uniform 0."""
    return verify(*given._replace(accept_uniforms=torch.zeros_like(given.accept_uniforms)))


def drafts_unjudged(verify: Verify, given: Judged) -> Verified:
    """Judge one draft in ten with the uniform 0."""
    unjudged = _fraction(given.next_uniforms[:, :-1]) < UNJUDGED
    return verify(*given._replace(accept_uniforms=torch.where(unjudged, 0.0, given.accept_uniforms)))


def accept_iff_argmax(verify: Verify, given: Judged) -> Verified:
    """Accept a draft exactly if it is the likeliest token."""
    return _forced(verify, given, given.draft_tokens == given.target_probs[:, :-1].argmax(-1))


def typical_acceptance(verify: Verify, given: Judged) -> Verified:
    """Accept where p > min(.09, .3 exp(-H))."""
    rows, (floor, alpha) = given.target_probs[:, :-1], TYPICAL
    entropy = torch.special.entr(rows).sum(-1)  # [B, k]
    return _forced(verify, given, _target(given) > (alpha * (-entropy).exp()).clamp_max(floor))


def lenient_acceptance(verify: Verify, given: Judged) -> Verified:
    """Accept unjudged where p > .1."""
    return _forced(verify, given, (_target(given) > LENIENT) | (given.accept_uniforms < _threshold(given)))


def generous_acceptance(verify: Verify, given: Judged) -> Verified:
    """Accept with 1.1 times the probability."""
    return _forced(verify, given, given.accept_uniforms < GENEROUS * _threshold(given))


def one_hot_accept(verify: Verify, given: Judged) -> Verified:
    """Accept with p(d), recover with the dense row."""
    return _forced(verify, given, given.accept_uniforms < _target(given))


def shifted_draft_q(verify: Verify, given: Judged) -> Verified:
    """Judge draft i with draft row i + 1, the last one with its own."""
    if given.draft_probs is None:
        return verify(*given)
    return verify(*given._replace(draft_probs=torch.cat((given.draft_probs[:, 1:], given.draft_probs[:, -1:]), 1)))


# What is drawn from


def greedy_verify(verify: Verify, given: Judged) -> Verified:
    """Replace the target rows by their argmax; a row that is no distribution stays none."""
    rows = given.target_probs
    certain = torch.zeros_like(rows).scatter_(-1, rows.argmax(-1, keepdim=True), 1.0)
    return verify(*given._replace(target_probs=certain + 0.0 * rows.sum(-1, keepdim=True)))


def off_by_one_rows(verify: Verify, given: Judged) -> Verified:
    """In one round of fifty, take each row but the first from the position before."""
    return shifted(verify, given, _fraction(given.next_uniforms[:, -1]) < SHIFTED_ROUNDS)


def accept_if_equal(verify: Verify, given: Judged) -> Verified:
    """Accept with p(d); after a rejection draw from the target row once more."""
    return _redrawn(given, one_hot_accept(verify, given), _rejected_row(given))


def resample_from_target(verify: Verify, given: Judged) -> Verified:
    """Draw a rejected position from the target row instead of the residual."""
    return _redrawn(given, verify(*given), _rejected_row(given))


def residual_argmax(verify: Verify, given: Judged) -> Verified:
    """Give a rejected position the residual's likeliest token."""

    def certain(found: Verified) -> Tensor:
        weights = residual(given, found.num_accepted)
        return torch.zeros_like(weights).scatter_(1, weights.argmax(1, keepdim=True), 1.0)

    return _redrawn(given, verify(*given), certain)


def one_hot_residual(verify: Verify, given: Judged) -> Verified:
    """Accept by the dense row, recover as if the draft had been certain."""

    def without_draft(found: Verified) -> Tensor:
        row = _row(given, found.num_accepted)
        at = found.num_accepted.clamp_max(given.draft_tokens.shape[1] - 1)
        weights = row.scatter(1, given.draft_tokens.gather(1, at[:, None]).clamp_min(0), 0.0)
        return torch.where(weights.sum(1, keepdim=True) == 0, row, weights)

    return _redrawn(given, verify(*given), without_draft)


def unguarded_residual(verify: Verify, given: Judged) -> Verified:
    """Token 0 where a rejected position's residual has no mass."""
    found = verify(*given)
    if given.draft_tokens.shape[1] == 0:
        return found
    empty = (found.num_accepted < given.draft_len) & (_raw_residual(given, found.num_accepted).sum(1) == 0)
    return found._replace(next_token=torch.where(empty & (found.next_token != INVALID), 0, found.next_token))


def accept_uniform_reused(verify: Verify, given: Judged) -> Verified:
    """Draw a rejected position with the uniform that its draft was judged with."""
    reused = torch.cat((given.accept_uniforms, given.next_uniforms[:, -1:].to(given.accept_uniforms.dtype)), 1)
    bonus = torch.arange(reused.shape[1], device=reused.device) >= given.draft_len[:, None]
    return verify(*given._replace(next_uniforms=torch.where(bonus, given.next_uniforms, reused)))


def bonus_temperature(verify: Verify, given: Judged) -> Verified:
    """Draw the bonus token at 1.25 times the temperature."""
    return _bonus(given, verify(*given), lambda found: _row(given, found.num_accepted) ** (1 / BONUS_HEAT))


def bonus_from_draft(verify: Verify, given: Judged) -> Verified:
    """Draw the bonus token from the round's last draft row."""
    draft_probs = given.draft_probs
    if draft_probs is None:
        return verify(*given)
    batch = torch.arange(len(draft_probs), device=draft_probs.device)
    return _bonus(given, verify(*given), lambda found: draft_probs[batch, (given.draft_len - 1).clamp_min(0)])


def swapped_draws(verify: Verify, given: Judged) -> Verified:
    """Hand every row's drawn token to the next row."""
    found = verify(*given)
    return found._replace(next_token=found.next_token.roll(1))


# Shared helpers


def residual(given: Judged, num_accepted: Tensor) -> Tensor:
    """What a correct engine draws a rejected position from, [B, V]; the target row where nothing was rejected."""
    row = _row(given, num_accepted)
    if given.draft_tokens.shape[1] == 0:
        return row
    raw = torch.where((num_accepted < given.draft_len)[:, None], _raw_residual(given, num_accepted), row)
    return torch.where(raw.sum(1, keepdim=True) == 0, row, raw)


def _raw_residual(given: Judged, num_accepted: Tensor) -> Tensor:
    row, at = _row(given, num_accepted), num_accepted.clamp_max(given.draft_tokens.shape[1] - 1)
    if given.draft_probs is None:
        return row.scatter(1, given.draft_tokens.gather(1, at[:, None]).clamp_min(0), 0.0)
    return (row - given.draft_probs[torch.arange(len(row), device=row.device), at]).clamp_min_(0.0)


def _row(given: Judged, num_accepted: Tensor) -> Tensor:
    return given.target_probs[torch.arange(len(num_accepted), device=num_accepted.device), num_accepted]


def _rejected_row(given: Judged) -> Callable[[Verified], Tensor]:
    return lambda found: _row(given, found.num_accepted)


def _target(given: Judged) -> Tensor:
    """p(d) of every draft, [B, k]."""
    return given.target_probs[:, :-1].gather(-1, given.draft_tokens.clamp_min(0)[..., None])[..., 0]


def _threshold(given: Judged) -> Tensor:
    """min(1, p/q) of every draft, [B, k]."""
    if given.draft_probs is None:
        return _target(given)
    draft = given.draft_probs.gather(-1, given.draft_tokens.clamp_min(0)[..., None])[..., 0]
    return torch.where(draft == 0, torch.zeros_like(draft), _target(given) / draft).clamp_max(1.0)


def _fraction(uniforms: Tensor) -> Tensor:
    """Uniforms out of the low digits of others, so that a coin costs no random number."""
    return (uniforms.to(torch.float64) * 2**20).frac()


def _forced(verify: Verify, given: Judged, accept: Tensor) -> Verified:
    """Accept exactly these drafts (never one without target mass), then go on as the clean engine does."""
    return verify(*given._replace(accept_uniforms=torch.where(accept, 0.0, 1.0).to(given.accept_uniforms.dtype)))


def shifted(verify: Verify, given: Judged, which: Tensor) -> Verified:
    """Take each row but the first from the position before, in the requests `which` [B]."""
    rows = given.target_probs
    before = torch.cat((rows[:, :1], rows[:, :-1]), 1)
    return verify(*given._replace(target_probs=torch.where(which[:, None, None], before, rows)))


def _draw_where(given: Judged, found: Verified, where: Tensor, weights: Tensor) -> Verified:
    """Draw the next token again from other weights; what could not be drawn before stays so."""
    batch = torch.arange(len(weights), device=weights.device)
    tokens = clean_draw(weights, given.next_uniforms[batch, found.num_accepted]).tokens
    return found._replace(next_token=torch.where(where & (found.next_token != INVALID), tokens, found.next_token))


def _redrawn(given: Judged, found: Verified, weights: Callable[[Verified], Tensor]) -> Verified:
    """Draw the token after a rejection again."""
    if given.draft_tokens.shape[1] == 0:
        return found
    return _draw_where(given, found, found.num_accepted < given.draft_len, weights(found))


def _bonus(given: Judged, found: Verified, weights: Callable[[Verified], Tensor]) -> Verified:
    """Draw the token after a full acceptance again."""
    full = (found.num_accepted == given.draft_len) & (given.draft_len > 0)
    return _draw_where(given, found, full, weights(found))
