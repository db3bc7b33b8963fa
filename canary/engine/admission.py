"""Which requests get rows next, what is asked of them before, and how their prompts get in without holding up the others.

A prompt in pieces stands in a row of its own behind the running ones and joins them when it is whole; it emits nothing before.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from canary.domain.errors import EngineMemoryError
from canary.engine import asked
from canary.engine.forward import PREFILL_CHUNK, RowForward
from canary.engine.requests import Job, Running, Words

TOGETHER = 2048  # tokens of prompts that are filled in one forward, which bounds its scratch memory
Filled = torch.Tensor | EngineMemoryError  # logits after some prompts, [m, V], or why there are none


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
        size: tokens of a piece.
    """

    running: Running
    row: int
    size: int

    def advance(self, target: RowForward) -> torch.Tensor | None:
        """One piece; logits after the prompt, [1, V], when it was the last.

        Raises:
            EngineMemoryError: the device has no room for it.
        """
        logits = target.prefill_chunk(self.row, self.running.job.token_ids, target.lengths[self.row], self.size)
        return None if logits is None else logits[None]


class Waiting:
    """Jobs in the order in which they get rows: the longest answers first, so that the last rows end at about the same time.

    Args:
        pieces: which prompts come in pieces.
        together: whether several whole prompts may be filled in one forward.
    """

    def __init__(self, jobs: Sequence[Job], pieces: Pieces, *, together: bool) -> None:
        self._jobs = deque(sorted(jobs, key=lambda job: -job.params.max_tokens))
        self._pieces, self._together = pieces, together

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def take(self, free: int, *, filling: bool) -> list[Job]:
        """The jobs whose prompts are filled in one forward now, or one whose prompt comes in pieces; none if they have to wait.

        Args:
            free: rows that are free.
            filling: whether a prompt is coming in pieces already; there is only one at a time.
        """
        taken: list[Job] = []
        while self._jobs and len(taken) < free and self._joins(self._jobs[0], taken, filling):
            taken.append(self._jobs.popleft())
        return taken

    def _joins(self, job: Job, taken: Sequence[Job], filling: bool) -> bool:
        """Whether a job comes in with those taken so far."""
        if self._pieces.take(job):
            return not taken and not filling
        if not taken:
            return True
        tokens = sum(len(each.token_ids) for each in (*taken, job))
        return self._together and not self._pieces.take(taken[0]) and tokens <= TOGETHER


def prefills(
    target: RowForward, first: int, prompts: Sequence[Sequence[int]], reaches: Sequence[int]
) -> Iterator[tuple[int, int, Filled]]:
    """Fill rows with whole prompts, together where the target does that and has the memory, else one when its turn is.

    Args:
        first: row of the first prompt; the others' follow.
        reaches: most cached tokens of each.

    Yields:
        From which prompt and to which, and the logits after each of them or why there are none.
    """
    if len(prompts) > 1:
        try:
            target.cache.reserve(max(reaches))
            together = target.prefill_all(first, prompts)
        except EngineMemoryError:
            pass  # one of them may be too much by itself, and has to fail alone
        else:
            yield 0, len(prompts), together
            return
    for at, (token_ids, reach) in enumerate(zip(prompts, reaches, strict=True)):
        try:
            target.cache.reserve(reach)
            filled: Filled = target.prefill(first + at, token_ids)[None]
        except EngineMemoryError as error:
            filled = error
        yield at, at + 1, filled


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
