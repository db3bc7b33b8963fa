"""What the fold is going to find, seen by the worker that runs the next ordinals: whether they still need a timing.

It writes nothing: the evidence is what `assess` folds from stored pairs. It only saves untraced passes that no gate would read.
"""

from __future__ import annotations

from collections.abc import Sequence

from canary.domain.evidence import Verdict
from canary.domain.modes import Mode
from canary.domain.pairs import Pair
from canary.flow.economy import WHOLE_ATTEMPT, Economy
from canary.flow.ports import FoldItem
from canary.stats import ttft_tail
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
        economy: as `assess` left it: where a stage counts timings anew.
    """

    def __init__(
        self,
        battery: ControlledBattery,
        state: ControlledState,
        stored: Sequence[FoldItem],
        *,
        drill: bool,
        economy: Economy = WHOLE_ATTEMPT,
    ) -> None:
        self._battery = battery
        self._state = battery.fold(state, stored)
        self._economy = economy.fold(stored)
        self._drill = drill

    def wants(self, *, control: bool) -> bool:
        """Whether the next block is timed; A/A pairs always are, since the clock may go wrong at any time."""
        return not self._drill if control else self.wants_timing

    @property
    def wants_timing(self) -> bool:
        """Whether a gate that the policy asks for still waits for timings (statistics 0b.7), and no safety gate has failed.

        A block brings a gate one observation, so that each one is asked about before it is timed.
        """
        if self._drill:
            return False
        gates = {g.gate: g.verdict for g in self._economy.judge(self._battery.main.assess(self._state.main))}
        if any(gates.get(name) is Verdict.FAIL for name in ("losslessness", "errors")):
            return False
        asked = [n for n in TIMED if n in gates and self._battery.main.context.gates.mode_of(n) in ASKED]
        return any(gates[name] not in DECIDED for name in asked) or self._wants_threshold()

    def _wants_threshold(self) -> bool:
        """Whether the tail gate still has to learn from calibrating requests when a first token is slow.

        A gate that only warns keeps no timing going, but without a threshold it could never warn.
        """
        context, main = self._battery.main.context, self._state.main
        mode = context.gates.mode_of(ttft_tail.GATE)
        if mode is Mode.OBSERVE or context.gates.ttft_slo_seconds is not None or context.calibration is not None:
            return False
        return self._battery.main.sums_of(main, "ttft")["requests"] < ttft_tail.MIN_TIMED

    def add(self, pair: Pair) -> None:
        """Fold one pair of the batch, if it is the next ordinal; another worker's gap leaves the outlook as it was."""
        if pair.ordinal == self._state.folded:
            item = FoldItem(pair.ordinal, pair.increments or None, pair.calibration_hash, 0.0, pair.control, pair.stratum)
            self._state = self._battery.fold(self._state, [item])
            self._economy = self._economy.fold([item])
