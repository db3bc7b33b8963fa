"""How a drafter with rows draws: each draft comes with the very probabilities that it was drawn from, or with none under greedy.

Every drafter that has a model draws here, so that a draft and its reported row can never be two different things.
"""

from __future__ import annotations

import torch

from canary.engine import sampling, streams
from canary.engine.drafters.base import Proposal, Round
from canary.engine.sampling import Draw
from canary.engine.streams import Uniforms


class Drawing:
    """What a drafter draws with.

    Args:
        draw, uniforms: `sampling.draw` and `streams.uniforms`, or a drill's faulty ones.
    """

    def __init__(self, draw: Draw = sampling.draw, uniforms: Uniforms = streams.uniforms) -> None:
        self._draw, self._uniforms = draw, uniforms

    def start(self, asked: Round) -> Drafts:
        """The drafts of one round, none yet."""
        return Drafts(asked, self._draw, self._uniforms)


class Drafts:
    """One round's drafts, column by column; each column sees the request's penalties and bans behind the drafts before it."""

    def __init__(self, asked: Round, draw: Draw, uniforms: Uniforms) -> None:
        self._asked, self._draw, self._uniforms = asked, draw, uniforms
        self._cursor = None if asked.prefixes is None else asked.prefixes.cursor(asked.keys.device)
        self._tokens: list[torch.Tensor] = []
        self._probs: list[torch.Tensor] = []

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        """The next draft of every row.

        Args:
            logits: [n, V], raw.

        Returns:
            [n] int64; `sampling.INVALID` where a row cannot be drawn from, so clamp before feeding them to a model.
        """
        shaped = logits if self._cursor is None else self._cursor.shape(logits)
        if self._asked.rows is None:  # a batch of greedy rows needs no probabilities
            tokens = shaped.float().argmax(-1)
        else:
            positions = self._asked.positions + len(self._tokens)
            uniforms = self._uniforms(self._asked.keys, streams.Stream.DRAFT, positions[:, None])[:, 0]
            drawn = self._draw(sampling.process(shaped, self._asked.rows), uniforms)
            tokens = drawn.tokens
            self._probs.append(drawn.probs)
        self._tokens.append(tokens)
        if self._cursor is not None:
            self._cursor.add(tokens)
        return tokens

    def proposal(self) -> Proposal:
        """All columns side by side."""
        probs = torch.stack(self._probs, 1) if self._probs else None
        return Proposal(torch.stack(self._tokens, 1), self._asked.limits, probs)


def nothing(asked: Round) -> Proposal:
    """A round in which nothing is drafted."""
    return Proposal(asked.keys.new_zeros(len(asked.limits), 0), (0,) * len(asked.limits))
