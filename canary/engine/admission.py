"""What is asked of a request before it gets a row, and how a long prompt gets into one without holding up the others.

A prompt in pieces stands in a row of its own behind the running ones and joins them when it is whole; it emits nothing before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from canary.engine import asked
from canary.engine.forward import PREFILL_CHUNK, RowForward
from canary.engine.requests import Job, Running, Words


@dataclass(frozen=True, slots=True)
class Pieces:
    """Which prompts come in pieces, one between two steps. A prompt's length alone decides, never who else is running.

    In 16 bit pieces round otherwise than the whole, so evidence is made without.

    Args:
        above: tokens of the longest prompt that is filled in whole.
        size: tokens of a piece, at least 1.
    """

    above: float = 2 * PREFILL_CHUNK
    size: int = PREFILL_CHUNK

    def take(self, job: Job) -> bool:
        return len(job.token_ids) > self.above

    @property
    def described(self) -> str:
        """For the epoch: pieces give a row other last bits."""
        return "whole" if self.above == math.inf else f"in pieces of {self.size} tokens above {self.above:g}"


WHOLE = Pieces(above=math.inf)


@dataclass(frozen=True, slots=True)
class Filling:
    """A request whose prompt is on its way into a row.

    Args:
        row: behind the running ones.
        size: tokens of a piece; None for the whole prompt at once.
    """

    running: Running
    row: int
    size: int | None = None

    def advance(self, target: RowForward) -> torch.Tensor | None:
        """One piece; logits after the prompt, [V], when it was the last.

        Raises:
            EngineMemoryError: the device has no room for it.
        """
        ids = self.running.job.token_ids
        if self.size is None:
            return target.prefill(self.row, ids)
        return target.prefill_chunk(self.row, ids, target.lengths[self.row], self.size)


def obstacle(job: Job, words: Words, target: RowForward) -> str | None:
    """Why a request cannot run; None if it can."""
    if job.error is not None:
        return job.error
    if not job.token_ids:
        return "the prompt has no tokens"
    if len(job.token_ids) >= target.context:
        return f"the prompt has {len(job.token_ids)} tokens, but the model's context ends at {target.context}"
    if job.params.max_tokens < 1:
        return f"max_tokens is {job.params.max_tokens}, but an answer has at least one token"
    if max(job.token_ids) >= target.vocab_size:
        return f"the prompt has token {max(job.token_ids)}, but the vocabulary ends at {target.vocab_size - 1}"
    return asked.obstacle(job.params, words, target.vocab_size)
