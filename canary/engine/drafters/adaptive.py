"""A drafter with adaptive k around any other: what it is asked for, or what is kept of its drafts, is worth a wider step.

The drafts themselves stay the other drafter's own, drawn from the rows that it hands over.
"""

from __future__ import annotations

from collections.abc import Sequence

from canary.engine.adaptive import AdaptiveK
from canary.engine.drafters.base import Drafter, Proposal, Round


class AdaptiveDrafter:
    """Another drafter's drafts, as many as pay.

    Args:
        drafter: the one that proposes.
        chooser: how many are worth judging.
    """

    def __init__(self, drafter: Drafter, chooser: AdaptiveK) -> None:
        self.kind = drafter.kind
        self.drafter = drafter
        self._chooser = chooser
        self._drafted: dict[int, int] = {}  # row -> drafts that its next step judges

    def begin(self, row: int, token_ids: Sequence[int], max_length: int) -> None:
        self._chooser.begin(row)
        self.drafter.begin(row, token_ids, max_length)

    def propose(self, asked: Round) -> Proposal:
        nothing = Proposal(asked.keys.new_zeros(len(asked.limits), 0), (0,) * len(asked.limits))
        if self._chooser.asks_first:
            limits = self._chooser.limits(asked.limits)
            proposal = self.drafter.propose(asked.limited(limits)) if any(limits) else nothing
        else:
            proposal = self._chooser.cut(self.drafter.propose(asked)) or nothing
        self._drafted = dict(enumerate(proposal.lengths))
        return proposal

    def commit(self, row: int, token_ids: Sequence[int], num_accepted: int) -> None:
        # A first token, and a step that no row may draft for, come without a round.
        self._chooser.observe(row, token_ids, self._drafted.pop(row, 0), num_accepted)
        self.drafter.commit(row, token_ids, num_accepted)

    def move(self, source: int, target: int) -> None:
        self._chooser.move(source, target)
        self.drafter.move(source, target)

    def end(self, row: int) -> None:
        self._chooser.end(row)
        self.drafter.end(row)
