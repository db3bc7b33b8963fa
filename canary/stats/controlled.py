"""An attempt's two states, the candidate's and the A/A arm's, folded out of one row of ordinals.

Every ordinal belongs to exactly one of the two and counts in it alone; neither state ever sees a pair of the other's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from canary.domain.evidence import GateEvidence
from canary.stats import control, drift_gate, fold, watch
from canary.stats.battery import Battery
from canary.stats.fold import Elsewhere
from canary.stats.part import Context
from canary.stats.state import State


class FoldItem(fold.FoldItem, Protocol):
    """One finished ordinal that says whose it is (`flow.ports.FoldItem` meets this)."""

    @property
    def control(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ControlledState:
    """What is known after the first `folded` ordinals.

    Args:
        main: of all ordinals but the A/A ones.
        control: of the A/A ones.
    """

    main: State
    control: State

    @property
    def folded(self) -> int:
        """Ordinals folded, which is also the next one; both states have passed all of them."""
        return self.main.folded

    def to_json(self) -> dict[str, Any]:
        """`{"battery": ..., "control": ...}`, as an attempt's evidence record keeps them."""
        return {"battery": self.main.to_json(), "control": self.control.to_json()}


class ControlledBattery:
    """Both batteries of one attempt under one frozen context.

    Either battery passes every ordinal, and those of the other kind add nothing to it; so whatever it keeps from one pair to the
    next (the requests that share randomness, the change detector) it keeps within its kind.

    Args:
        context: of the attempt, with its calibration once that is stored.
        main: the candidate's battery; the whole one by default.
        asked: whether the policy has an A/A arm; without one there is no gate about it.
    """

    def __init__(self, context: Context, main: Battery | None = None, *, asked: bool = True) -> None:
        self.main = main or Battery(context)
        self.control = control.control_battery(context)
        self._asked = asked

    def of(self, *, control: bool) -> Battery:
        """The battery that computes a pair's increments."""
        return self.control if control else self.main

    def start(self) -> ControlledState:
        """The states before the first ordinal."""
        return ControlledState(self.main.start(), self.control.start())

    def load(self, record: Mapping[str, Any]) -> ControlledState:
        """The states of an evidence record; what it does not hold yet starts empty."""
        states = (
            State.from_json(record[name]) if record.get(name) else built.start()
            for name, built in (("battery", self.main), ("control", self.control))
        )
        return ControlledState(*states)

    def fold(self, state: ControlledState, items: Iterable[FoldItem]) -> ControlledState:
        """Add finished ordinals to the state that each belongs to; the given states stay as they were.

        Raises:
            ConflictError: see `Battery.fold`. Nothing is half folded.
        """
        items = list(items)
        main, control = ([item if item.control is kind else Elsewhere(item.ordinal) for item in items] for kind in (False, True))
        return ControlledState(self.main.fold(state.main, main), self.control.fold(state.control, control))

    def assess(self, state: ControlledState) -> tuple[GateEvidence, ...]:
        """Every gate of the candidate, the one about its acceptance since it was frozen, and the A/A arm's one."""
        found = (*self.main.assess(state.main), *self._drift(state.main))
        return (*found, control.judge(self.control, state.control)) if self._asked else found

    def _drift(self, state: State) -> tuple[GateEvidence, ...]:
        context = self.main.context
        if state.reference is None or state.drift is None:
            return ()
        limit = watch.threshold(context)
        return (drift_gate.shadow(context.gates.acceptance_drift_margin, limit, state.reference, state.drift),)
