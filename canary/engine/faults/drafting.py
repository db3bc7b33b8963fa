"""Faults around a whole drafter: what it sees, how long it takes, what its ids mean; the output stays right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import sleep

from canary.domain.pairs import DrafterKind
from canary.engine.drafters.base import Drafter, Proposal, Round
from canary.engine.faults.judging import Inject

WINDOW = 4  # prompt tokens
SLOW_SECONDS = 0.02
VOCABULARY_SHIFT = 7


class Faulty:
    """A drafter that does what another does; a fault overrides what it changes."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.kind = drafter.kind

    def begin(self, row: int, token_ids: Sequence[int], max_length: int) -> None:
        self.drafter.begin(row, token_ids, max_length)

    def propose(self, asked: Round) -> Proposal:
        return self.drafter.propose(asked)

    def commit(self, row: int, token_ids: Sequence[int], num_accepted: int) -> None:
        self.drafter.commit(row, token_ids, num_accepted)

    def move(self, source: int, target: int) -> None:
        self.drafter.move(source, target)

    def end(self, row: int) -> None:
        self.drafter.end(row)


def wrapping(faulty: Callable[[Drafter], Drafter]) -> Inject:
    """The injection of a fault around the drafter."""
    return lambda hooks: replace(hooks, drafter=lambda drafter: faulty(hooks.drafter(drafter)))


class ShortWindow(Faulty):
    """Sees the end of the prompt only."""

    def begin(self, row: int, token_ids: Sequence[int], max_length: int) -> None:
        self.drafter.begin(row, token_ids[-WINDOW:], max_length)


class MissedBonus(Faulty):
    """Never sees the token that follows a full acceptance."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self._drafted: tuple[int, ...] = ()

    def propose(self, asked: Round) -> Proposal:
        proposal = self.drafter.propose(asked)
        self._drafted = proposal.lengths
        return proposal

    def commit(self, row: int, token_ids: Sequence[int], num_accepted: int) -> None:
        full = row < len(self._drafted) and 0 < self._drafted[row] == num_accepted < len(token_ids)
        self.drafter.commit(row, token_ids[:num_accepted] if full else token_ids, num_accepted)


class OtherVocabulary(Faulty):
    """Its ids mean other tokens: every id is shifted, and its rows with them, so that nothing but acceptance suffers.

    Args:
        drafter: any.
    """

    def propose(self, asked: Round) -> Proposal:
        proposal = self.drafter.propose(asked)
        if proposal.probs is None:
            # Which ids there are is not known here; small steps down stay inside any vocabulary.
            return replace(proposal, tokens=(proposal.tokens - VOCABULARY_SHIFT).clamp_min(0))
        size = proposal.probs.shape[-1]
        tokens = (proposal.tokens + VOCABULARY_SHIFT) % size
        return Proposal(
            tokens.where(proposal.tokens >= 0, proposal.tokens), proposal.lengths, proposal.probs.roll(VOCABULARY_SHIFT, -1)
        )


class Slow(Faulty):
    """Waits before every proposal."""

    def propose(self, asked: Round) -> Proposal:
        sleep(SLOW_SECONDS)
        return self.drafter.propose(asked)


class Quadratic(Faulty):
    """Compares all pairs of positions of every text before it proposes."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self._texts: dict[int, list[int]] = {}

    def begin(self, row: int, token_ids: Sequence[int], max_length: int) -> None:
        self._texts[row] = list(token_ids)
        super().begin(row, token_ids, max_length)

    def propose(self, asked: Round) -> Proposal:
        for text in self._texts.values():
            sum(left == right for left in text for right in text)
        return super().propose(asked)

    def commit(self, row: int, token_ids: Sequence[int], num_accepted: int) -> None:
        self._texts[row].extend(token_ids)
        super().commit(row, token_ids, num_accepted)

    def move(self, source: int, target: int) -> None:
        self._texts[target] = self._texts.pop(source)
        super().move(source, target)

    def end(self, row: int) -> None:
        self._texts.pop(row, None)
        super().end(row)


class AsOneHot(Faulty):
    """Draws as before and keeps its rows to itself, so that every draft counts as certain."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.kind = DrafterKind.ONE_HOT

    def propose(self, asked: Round) -> Proposal:
        return replace(self.drafter.propose(asked), probs=None)
