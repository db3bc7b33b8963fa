"""How many tokens to draft in a step: per row an estimate of what would be accepted, weighed against what such a step costs.

A choice reads what the rows' own earlier rounds showed and a cost table that was measured before; it never looks at a clock, at
the target's rows or at another request's past beyond the width that the rows of one step share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from canary.engine.drafters.base import Proposal
from canary.engine.probe import WidthCost

# Acceptance of a draft before anything is known, by grade: length of an n-gram match; 0 is a drafter that does not grade itself.
PRIORS = (0.5, 0.15, 0.25, 0.45)
DECAY = 0.9  # weight of the past at each judged draft token
LEAST, MOST = 0.01, 0.97
FIRST_WAIT, LONGEST_WAIT = 4, 64  # steps without a draft before a drafter that costs is tried again; doubled after each trial
WORTH = 1.03  # drafting must promise so many times the tokens per second of not drafting


@dataclass(frozen=True, slots=True)
class CostTable:
    """Milliseconds of a step, by rows and width, between the measured points by straight lines.

    Args:
        target: (batch, width) -> milliseconds of one target step.
        draft: (batch, k) -> milliseconds of proposing k tokens; empty for a drafter that costs nothing worth counting.
    """

    target: Mapping[tuple[int, int], float]
    draft: Mapping[tuple[int, int], float] = field(default_factory=dict)

    @classmethod
    def of(cls, costs: Sequence[WidthCost], draft: Mapping[tuple[int, int], float] | None = None) -> CostTable:
        """From the probe's curve."""
        return cls({(c.batch, c.width): c.milliseconds for c in costs}, draft or {})

    @property
    def widths(self) -> list[int]:
        """The measured widths."""
        return sorted({width for _, width in self.target})

    def step(self, batch: int, k: int) -> float:
        """Milliseconds of one round: k drafts, then a target step of width k + 1."""
        return _between(self.target, batch, k + 1) + (_between(self.draft, batch, k) if k and self.draft else 0.0)


@dataclass(slots=True)
class _Row:
    """What one request has shown.

    Args:
        accepted: estimate of a draft token's acceptance, by grade.
        grade: of the draft in flight.
        unjudged: its first token if the step was too narrow to judge it, which the next emitted token answers for nothing.
        idle, wait: steps since the last draft, and how many there may be.
    """

    accepted: list[float]
    grade: int = 0
    unjudged: int | None = None
    idle: int = 0
    wait: int = FIRST_WAIT


class AdaptiveK:
    """Chooses the width of each step.

    Args:
        costs: of this drafter on this target.
        num_speculative_tokens: k, the most tokens to draft.
        num_rows: rows of the loop.
    """

    def __init__(self, costs: CostTable, num_speculative_tokens: int, num_rows: int) -> None:
        self._costs = costs
        self._k = num_speculative_tokens
        self._rows: list[_Row | None] = [None] * num_rows
        measured = [width - 1 for width in costs.widths if width <= num_speculative_tokens]
        self._choices = sorted({*measured, num_speculative_tokens})  # always with 0, the first measured width being 1
        self._prices: dict[int, list[float]] = {}

    @property
    def asks_first(self) -> bool:
        """Whether drafting costs something, so that k is chosen before it and not after."""
        return bool(self._costs.draft)

    def begin(self, row: int) -> None:
        """A request starts in a row; nothing is known of it."""
        self._rows[row] = _Row(list(PRIORS))

    def move(self, source: int, target: int) -> None:
        """Row `source` lives in row `target` from now on."""
        self._rows[target], self._rows[source] = self._rows[source], None

    def end(self, row: int) -> None:
        """The row's request has ended."""
        self._rows[row] = None

    def limits(self, asked: Sequence[int]) -> tuple[int, ...]:
        """Before a drafter that costs something runs: how many tokens each row may draft.

        Args:
            asked: the most that each row may draft.
        """
        rows = [self._row(row) for row in range(len(asked))]
        k = self._best([(row.accepted[0], most) for row, most in zip(rows, asked, strict=True)])
        if k == 0:
            for row in rows:
                row.idle += 1
            # One row that is due takes all along: they pay for the wider step together anyway.
            if any(row.idle >= row.wait for row in rows):
                k = 1
        if k > 0:
            for row in rows:
                row.grade, row.wait, row.idle = 0, min(2 * row.wait, LONGEST_WAIT) if row.idle else row.wait, 0
        return tuple(min(k, most) for most in asked)

    def cut(self, proposal: Proposal) -> Proposal | None:
        """After a drafter that costs nothing ran: the columns of its drafts that are worth judging, None for none of them."""
        drafts = [(0.0, 0)] * len(proposal.lengths)
        for i, length in enumerate(proposal.lengths):
            row = self._row(i)
            row.grade, row.unjudged = _grade(proposal, i), None
            drafts[i] = (row.accepted[row.grade], length)
        k = self._best(drafts)
        if k == 0:
            firsts = proposal.tokens[:, 0].tolist() if proposal.tokens.shape[1] else []
            for i, length in enumerate(proposal.lengths):
                self._row(i).unjudged = firsts[i] if length else None
            return None
        probs = None if proposal.probs is None else proposal.probs[:, :k]
        return Proposal(proposal.tokens[:, :k], tuple(min(k, n) for n in proposal.lengths), probs, proposal.grades)

    def observe(self, row: int, token_ids: Sequence[int], num_drafted: int, num_accepted: int) -> None:
        """Learn from what a step emitted in a row.

        Args:
            token_ids: emitted, at least one.
            num_drafted, num_accepted: as they were judged.
        """
        state = self._row(row)
        outcomes = [1.0] * num_accepted + [0.0] * (num_accepted < num_drafted)
        if num_drafted == 0 and state.unjudged is not None:
            outcomes = [float(token_ids[0] == state.unjudged)]
        if num_accepted:
            state.wait = FIRST_WAIT
        estimate = state.accepted[state.grade]
        for outcome in outcomes:
            estimate = DECAY * estimate + (1 - DECAY) * outcome
        state.accepted[state.grade] = min(MOST, max(LEAST, estimate))
        state.unjudged = None

    def _best(self, drafts: Sequence[tuple[float, int]]) -> int:
        """The k with the most expected tokens per millisecond; Leviathan et al. 2023, section 3.3, over rows of one step.

        Args:
            drafts: per row the acceptance of its draft tokens, and how many there are.
        """
        most = max((length for _, length in drafts), default=0)
        prices = self._price(len(drafts))
        best, plain = 0, len(drafts) / prices[0]
        rate = WORTH * plain
        for choice, price in zip(self._choices[1:], prices[1:], strict=True):
            tokens = sum((1 - a ** (min(length, choice) + 1)) / (1 - a) for a, length in drafts)
            if tokens / price > rate:
                best, rate = choice, tokens / price
            if choice >= most:
                break
        return min(best, most)

    def _price(self, batch: int) -> list[float]:
        if batch not in self._prices:
            self._prices[batch] = [self._costs.step(batch, k) for k in self._choices]
        return self._prices[batch]

    def _row(self, row: int) -> _Row:
        state = self._rows[row]
        assert state is not None, f"row {row} has no request"
        return state


def _grade(proposal: Proposal, row: int) -> int:
    return 0 if proposal.grades is None else min(proposal.grades[row], len(PRIORS) - 1)


def _between(points: Mapping[tuple[int, int], float], batch: int, second: int) -> float:
    """Straight lines between the measured points of a grid; beyond its ends, on along the last line."""
    batches = sorted({b for b, _ in points})
    seconds = sorted({s for _, s in points})

    def at(b: int) -> float:
        return _line(seconds, [points[b, s] for s in seconds], second)

    return _line(batches, [at(b) for b in batches], batch)


def _line(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    if len(xs) == 1:
        return ys[0]
    i = min(max(bisect_left(xs, x), 1), len(xs) - 1)
    share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
    return ys[i - 1] + share * (ys[i] - ys[i - 1])
