"""What the fold is going to find, seen by the worker that runs the next ordinals: whether they still need a timing.

It writes nothing: the evidence is what `assess` folds from stored pairs. It only saves untraced passes that no gate would read.
"""

from __future__ import annotations

from collections.abc import Sequence

from canary.domain.evidence import Verdict
from canary.domain.modes import Mode
from canary.domain.pairs import Pair
from canary.flow.ports import FoldItem
from canary.stats.controlled import ControlledBattery, ControlledState

DECIDED = (Verdict.PASS, Verdict.FAIL)
TIMED = ("speed", "ttft", "ttft_tail")  # gates that read timings
ASKED = (Mode.REQUIRED, Mode.BEFORE_FULL)  # modes in which a gate can keep a route from advancing


class Outlook:
    """The attempt's state with everything stored so far, and then the batch in hand, folded on top.

    Args:
        state: as `assess` left it.
        stored: finished ordinals after it, contiguous.
        drill: the candidate has an injected fault; it never takes traffic, so nobody asks for its speed.
    """

    def __init__(self, battery: ControlledBattery, state: ControlledState, stored: Sequence[FoldItem], *, drill: bool) -> None:
        self._battery = battery
        self._state = battery.fold(state, stored)
        self._drill = drill

    def wants(self, *, control: bool) -> bool:
        """Whether the next pair is timed; A/A pairs always are, since the clock may go wrong at any time."""
        return not self._drill if control else self.wants_timing

    @property
    def wants_timing(self) -> bool:
        """Whether a gate that the policy asks for still waits for timings (statistics 0b.7), and no safety gate has failed."""
        if self._drill:
            return False
        gates = {g.gate: g.verdict for g in self._battery.main.assess(self._state.main)}
        failed = any(gates.get(name) is Verdict.FAIL for name in ("losslessness", "errors"))
        asked = [n for n in TIMED if n in gates and self._battery.main.context.gates.mode_of(n) in ASKED]
        return not failed and any(gates[name] not in DECIDED for name in asked)

    def add(self, pair: Pair) -> None:
        """Fold one pair of the batch, if it is the next ordinal; another worker's gap leaves the outlook as it was."""
        if pair.ordinal == self._state.folded:
            item = FoldItem(pair.ordinal, pair.increments or None, pair.calibration_hash, stored_at=0.0, control=pair.control)
            self._state = self._battery.fold(self._state, [item])
