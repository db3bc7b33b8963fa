"""One round judged: from the target's rows and the drafts to what is emitted, on the device and without asking it anything."""

from __future__ import annotations

from functools import lru_cache

import torch

from canary.domain.pairs import Scheme
from canary.engine.drafters.base import Proposal
from canary.engine.hooks import Hooks
from canary.engine.record import Draws, Step
from canary.engine.streams import ROUND_SPACING, Stream
from canary.engine.together import Batch
from canary.engine.transfer import to_device
from canary.engine.verify import verify_greedy

# A position is judged at most once and drawn at most once, so one stream serves recovered, bonus and plain tokens.
_STREAMS = (Stream.ACCEPT, Stream.SAMPLE, Stream.PIT)


def spacing(hooks: Hooks) -> int:
    """Numbers between two rounds of an answer, see `streams.ROUND_SPACING`; 1 where they are keyed by position."""
    return ROUND_SPACING if hooks.scheme is Scheme.BLOCK else 1


def judge(hooks: Hooks, batch: Batch, logits: torch.Tensor, proposal: Proposal, *, traced: bool) -> Step:
    """Verify one round; an untraced round of greedy rows needs no probabilities.

    Args:
        logits: raw target rows, [n, k + 1, V].
        traced: whether what was drawn is kept.
    """
    width = logits.shape[1]
    lengths = to_device(proposal.lengths, logits.device)
    shaped = hooks.shape(logits, proposal.tokens, lengths, batch.prefixes)
    probs = draws = told = None
    if batch.greedy and not traced:
        verified = verify_greedy(shaped, proposal.tokens, lengths)
    else:
        rows = batch.rows(width)
        probs = hooks.process(shaped, rows, lengths)
        positions = batch.positions(width, spacing(hooks)).expand(len(_STREAMS), -1, -1)
        accept, following, pit = hooks.uniforms(batch.keys, _streams(logits.device), positions)
        accept = accept[:, :-1]  # [n, k]; the others are [n, k + 1]
        verified = hooks.verify(probs, proposal.tokens, lengths, proposal.probs, accept, following)
        draws = Draws(probs, rows, accept, pit, hooks.scheme) if traced else None
    if batch.telling is not None:
        told = batch.telling.judge(hooks.logprobs, logits, shaped, probs, proposal.tokens, verified)
    return Step(logits, proposal, lengths, verified, draws, told)


@lru_cache
def _streams(device: torch.device) -> torch.Tensor:
    return to_device(_STREAMS, device)[:, None, None]
