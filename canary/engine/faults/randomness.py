"""Faults of random numbers, and faults that take over whole requests, which random keys tell apart.

The trace's own uniforms (stream PIT) always stay clean: they belong to the observer, not to the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from canary.engine.faults.judging import Inject, Judged, in_verify, residual
from canary.engine.hooks import Hooks
from canary.engine.sampling import INVALID, Drawn
from canary.engine.streams import Stream, Uniforms, philox
from canary.engine.verify import Verified, Verify

_MASK = 0xFFFFFFFF


def keyed(other: Callable[[Tensor], Tensor]) -> Inject:
    """Draw with other keys: [n, 2] to [n, 2]."""

    def change(uniforms: Uniforms, keys: Tensor, stream: Tensor, positions: Tensor) -> Tensor:
        return uniforms(other(keys), stream, positions)

    return _drawing(change)


def one_key(keys: Tensor) -> Tensor:
    """Every request has the same key."""
    return torch.zeros_like(keys)


def key_of_row(keys: Tensor) -> Tensor:
    """A request's key is its row in the batch."""
    return torch.arange(len(keys), device=keys.device)[:, None].expand_as(keys).contiguous()


def as_draft(reusing: Stream) -> Inject:
    """One stream draws the very numbers of the stream DRAFT."""

    def change(uniforms: Uniforms, keys: Tensor, stream: Tensor, positions: Tensor) -> Tensor:
        return uniforms(keys, torch.where(stream == reusing, int(Stream.DRAFT), stream), positions)

    return _drawing(change)


def shared_noise(hooks: Hooks) -> Hooks:
    """Draw drafts and recovered tokens as the winners of one race: log weight plus Gumbel noise that both of them share."""
    shared = as_draft(Stream.SAMPLE)(hooks)

    def draw(probs: Tensor, uniforms: Tensor) -> Drawn:
        drawn = hooks.draw(probs, uniforms)
        return Drawn(torch.where(drawn.tokens == INVALID, INVALID, _race(probs, uniforms)), drawn.probs)

    def change(verify: Verify, given: Judged) -> Verified:
        found = verify(*given)
        batch = torch.arange(len(found.next_token), device=found.next_token.device)
        tokens = _race(residual(given, found.num_accepted), given.next_uniforms[batch, found.num_accepted])
        return found._replace(next_token=torch.where(found.next_token == INVALID, INVALID, tokens))

    return in_verify(change)(replace(shared, draw=draw))


def in_requests(rate: float, change: Callable[[Verify, Judged, Tensor], Verified]) -> Inject:
    """Change the judging of whole requests, chosen by their keys.

    Args:
        rate: share of the requests.
        change: gets which of the round's requests are chosen, [B] bool.
    """

    def inject(hooks: Hooks) -> Hooks:
        chosen: list[Tensor] = []  # of the round in hand: its uniforms are always asked for before it is judged

        def uniforms(keys: Tensor, stream: Stream | Tensor, positions: Tensor) -> Tensor:
            chosen[:] = [hooks.uniforms(keys, Stream.RECOVER, torch.zeros_like(keys[:, :1]))[:, 0] < rate]
            return hooks.uniforms(keys, stream, positions)

        def judge(verify: Verify, given: Judged) -> Verified:
            return change(verify, given, chosen[0]) if chosen else verify(*given)

        return in_verify(judge)(replace(hooks, uniforms=uniforms))

    return inject


def unjudged(verify: Verify, given: Judged, which: Tensor) -> Verified:
    """Accept every draft of the chosen requests."""
    return verify(*given._replace(accept_uniforms=torch.where(which[:, None], 0.0, given.accept_uniforms)))


def _drawing(change: Callable[[Uniforms, Tensor, Tensor, Tensor], Tensor]) -> Inject:
    """The injection of a fault in the uniforms that keeps those of the observer."""

    def inject(hooks: Hooks) -> Hooks:
        def wrapped(keys: Tensor, stream: Stream | Tensor, positions: Tensor) -> Tensor:
            streams = torch.as_tensor(stream, dtype=torch.int64, device=positions.device)
            faulty = change(hooks.uniforms, keys, streams, positions)
            return torch.where(streams == Stream.PIT, hooks.uniforms(keys, streams, positions), faulty)

        return replace(hooks, uniforms=wrapped)

    return inject


def _race(weights: Tensor, seeds: Tensor) -> Tensor:
    """argmax(log w + Gumbel noise); the noise of every token is a function of the row's seed.

    Args:
        weights: [B, V], not negative.
        seeds: [B] in [0, 1).

    Returns:
        [B] int64.
    """
    bits = (seeds.to(torch.float64) * 2.0**53).to(torch.int64)
    tokens = torch.arange(weights.shape[1], device=weights.device).expand(weights.shape)
    nothing = torch.zeros_like(tokens)
    key = torch.stack([word.expand(len(weights))[:, None].expand_as(tokens) for word in (bits & _MASK, (bits >> 32) & _MASK)])
    first = philox(torch.stack((tokens, nothing, nothing, nothing)), key)[0]
    uniform = (first.to(torch.float64) + 0.5) * 2.0**-32
    return (weights.to(torch.float64).log() - (-uniform.log()).log()).argmax(1)
