"""The economy window: acceptance, speed and TTFT counted anew from the ordinal at which a stage began.

It reads the increments that the attempt's own fold reads and adds them to sums of its own. Nothing here touches a losslessness
bet: those never restart within an attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from canary.domain import budget
from canary.domain.evidence import GateEvidence
from canary.stats import shortfall
from canary.stats.battery import Battery, pack, unpack
from canary.stats.controlled import FoldItem
from canary.stats.fold import Elsewhere
from canary.stats.layout import STRATA
from canary.stats.part import Vector
from canary.stats.state import State

RESTARTED = ("acceptance", "speed", "ttft")  # parts whose gates a stage may gather anew


@dataclass(frozen=True, slots=True)
class WindowState:
    """What is known since a stage began.

    Args:
        stage: the stage's name.
        number: of the window in its attempt; the shadow's own, which is the whole attempt, is 1.
        start: first ordinal that counts.
        state: sums of the restarted parts; its ordinals are the attempt's.
    """

    stage: str
    number: int
    start: int
    state: State

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"stage": self.stage, "number": self.number, "start": self.start, "state": self.state.to_json()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> WindowState:
        """The inverse of `to_json`."""
        return cls(body["stage"], body["number"], body["start"], State.from_json(body["state"]))


@dataclass(frozen=True, slots=True)
class _Item:
    """An ordinal with the restarted parts' increments alone."""

    ordinal: int
    increments: bytes
    calibration_hash: str
    stored_at: float


def _candidates(item: FoldItem) -> bool:
    return not item.control


class Window:
    """The restarted parts of an attempt's battery, at the window's own error budget.

    Args:
        main: the attempt's battery.
        number: see `WindowState`; it sets the budget (`domain.budget.window_alpha`).
        counts: whether an ordinal is evidence about the candidate's traffic; all but A/A ones by default.
    """

    def __init__(self, main: Battery, number: int, counts: Callable[[FoldItem], bool] = _candidates) -> None:
        self._counts = counts
        places = [place for place in main.layout.places if place.part.name in RESTARTED]
        context = replace(main.context, alpha=budget.window_alpha(main.context.alpha, number))
        self._battery = Battery(context, [place.part for place in places], _no_kill)
        self._taken = np.concatenate([np.arange(len(STRATA)), *(np.arange(p.stored.start, p.stored.stop) for p in places)])
        self._number = number

    def start(self, stage: str, ordinal: int) -> WindowState:
        """The state of a stage that began before this ordinal."""
        return WindowState(stage, self._number, ordinal, replace(self._battery.start(), folded=ordinal))

    def fold(self, window: WindowState, items: Iterable[FoldItem]) -> WindowState:
        """Add the attempt's next ordinals; A/A pairs and those of left-out strata are passed by.

        Raises:
            ConflictError: see `Battery.fold`.
        """
        mine = (self._item(item) for item in items)
        return replace(window, state=self._battery.fold(window.state, mine))

    def judge(self, window: WindowState, gates: Iterable[GateEvidence]) -> tuple[GateEvidence, ...]:
        """The attempt's gates, those of the restarted parts as the window finds them.

        Args:
            gates: of the whole attempt.
        """
        found = {
            gate.gate: gate
            for part in self._battery.parts
            for gate in part.assess(self._battery.context, self._battery.sums_of(window.state, part.name))
        }
        told = shortfall.told(found.values(), self._battery.strata(window.state))
        facts = {"window": {"stage": window.stage, "from_ordinal": window.start, "alpha": self._battery.context.alpha}}
        since = f"Counted from ordinal {window.start} on, where stage {window.stage} began."
        mine = {gate.gate: replace(gate, sentence=f"{gate.sentence} {since}", details={**gate.details, **facts}) for gate in told}
        return tuple(mine.get(gate.gate, gate) for gate in gates)

    def _item(self, item: FoldItem) -> Elsewhere | _Item:
        if not self._counts(item) or not item.increments:
            return Elsewhere(item.ordinal)
        increments = pack(unpack(item.increments)[self._taken])
        return _Item(item.ordinal, increments, item.calibration_hash, item.stored_at)


def _no_kill(log_e: Mapping[str, Vector | float], strata: Vector) -> Vector:
    """The economy kills nothing: log of an e-value that stays at 1."""
    return np.zeros(len(strata))
