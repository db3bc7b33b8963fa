"""What the fold is going to find, seen by the worker that runs the next ordinals: whether they still need a timing.

It writes nothing: the evidence is what `assess` folds from stored pairs. It only saves untraced passes that no gate would read.
"""

from __future__ import annotations

from collections.abc import Sequence

from canary.domain.evidence import Verdict
from canary.domain.pairs import Pair
from canary.flow.ports import FoldItem
from canary.stats.battery import Battery
from canary.stats.state import State

DECIDED = (Verdict.PASS, Verdict.FAIL)


class Outlook:
    """The attempt's state with everything stored so far, and then the batch in hand, folded on top.

    Args:
        state: as `assess` left it.
        stored: finished ordinals after it, contiguous.
        drill: the candidate has an injected fault; it never takes traffic, so nobody asks for its speed.
    """

    def __init__(self, battery: Battery, state: State, stored: Sequence[FoldItem], *, drill: bool) -> None:
        self._battery = battery
        self._state = battery.fold(state, stored)
        self._drill = drill

    @property
    def wants_timing(self) -> bool:
        """Whether the speed gate is still open (statistics 0b.7) and no safety gate has failed: a kill needs no speed."""
        if self._drill:
            return False
        gates = {g.gate: g.verdict for g in self._battery.assess(self._state)}
        failed = any(gates.get(name) is Verdict.FAIL for name in ("losslessness", "errors"))
        return not failed and gates["speed"] not in DECIDED

    def add(self, pair: Pair) -> None:
        """Fold one pair of the batch, if it is the next ordinal; another worker's gap leaves the outlook as it was."""
        if pair.ordinal == self._state.folded:
            item = FoldItem(pair.ordinal, pair.increments or None, pair.calibration_hash, stored_at=0.0)
            self._state = self._battery.fold(self._state, [item])
