"""An attempt's states, the candidate's, the A/A arm's and the left-out strata's, folded out of one row of ordinals.

Every ordinal belongs to exactly one of them and counts in it alone; no state ever sees a pair of another's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from canary.domain.evidence import GateEvidence, GateRole
from canary.domain.modes import STRATUM_GATES
from canary.domain.traffic import Stratum
from canary.stats import control, drift_gate, fold, losslessness, watch
from canary.stats.battery import Battery
from canary.stats.fold import Elsewhere
from canary.stats.part import Context
from canary.stats.state import State


class FoldItem(fold.FoldItem, Protocol):
    """One finished ordinal that says whose it is (`flow.ports.FoldItem` meets this)."""

    @property
    def control(self) -> bool: ...

    @property
    def stratum(self) -> Stratum | None: ...


@dataclass(frozen=True, slots=True)
class ControlledState:
    """What is known after the first `folded` ordinals.

    Args:
        main: of all ordinals but the A/A ones and those of strata that the flag leaves out.
        control: of the A/A ones.
        left_out: of the strata that the flag leaves out; None where it leaves none out.
    """

    main: State
    control: State
    left_out: State | None = None

    @property
    def folded(self) -> int:
        """Ordinals folded, which is also the next one; every state has passed all of them."""
        return self.main.folded

    def to_json(self) -> dict[str, Any]:
        """`{"battery": ..., "control": ...}`, and `left_out` where there is one, as an attempt's evidence record keeps them."""
        kept = {"battery": self.main.to_json(), "control": self.control.to_json()}
        return kept if self.left_out is None else {**kept, "left_out": self.left_out.to_json()}


class ControlledBattery:
    """The batteries of one attempt under one frozen context.

    Each state passes every ordinal, and those of another kind add nothing to it; so whatever it keeps from one pair to the
    next (the requests that share randomness, the change detector) it keeps within its kind.

    A stratum that the flag leaves out gets no candidate traffic, so its pairs enter no gate about the candidate: not those that
    promote, nor completeness, nor the two e-values that may kill. They are folded by the same battery into a state of their own,
    of which only the gates about that stratum alone are shown, and only where the policy gives the stratum a mode. A/A pairs
    count whatever their stratum: they are about the harness.

    Args:
        context: of the attempt, with its calibration once that is stored.
        main: the candidate's battery; the whole one by default.
        asked: whether the policy has an A/A arm; without one there is no gate about it.
        left_out: strata that the flag leaves out.
    """

    def __init__(
        self, context: Context, main: Battery | None = None, *, asked: bool = True, left_out: Collection[Stratum] = ()
    ) -> None:
        self.main = main or Battery(context)
        self.control = control.control_battery(context)
        self._asked = asked
        self._left_out = frozenset(left_out)
        shown = {each.stratum for each in context.gates.strata}
        self._shown = frozenset(stratum for stratum in self._left_out if stratum.value in shown)

    def of(self, *, control: bool) -> Battery:
        """The battery that computes a pair's increments."""
        return self.control if control else self.main

    def leaves_out(self, stratum: Stratum | None, *, control: bool) -> bool:
        """Whether an ordinal is of a stratum that the flag leaves out; a claim from before strata were kept counts."""
        return not control and stratum in self._left_out

    def counts(self, item: FoldItem) -> bool:
        """Whether an ordinal is evidence about the candidate's own traffic."""
        return not item.control and (not self._left_out or item.stratum not in self._left_out)

    def start(self) -> ControlledState:
        """The states before the first ordinal."""
        return ControlledState(self.main.start(), self.control.start(), self.main.start() if self._left_out else None)

    def load(self, record: Mapping[str, Any]) -> ControlledState:
        """The states of an evidence record; what it lacks starts empty, a state of left-out strata at the next ordinal."""
        main, controls = (
            State.from_json(record[name]) if record.get(name) else built.start()
            for name, built in (("battery", self.main), ("control", self.control))
        )
        if not self._left_out:
            return ControlledState(main, controls)
        kept = record.get("left_out")
        return ControlledState(main, controls, State.from_json(kept) if kept else replace(self.main.start(), folded=main.folded))

    def fold(self, state: ControlledState, items: Iterable[FoldItem]) -> ControlledState:
        """Add finished ordinals to the state that each belongs to; the given states stay as they were.

        Raises:
            ConflictError: see `Battery.fold`. Nothing is half folded.
        """
        items = list(items)
        passed = [Elsewhere(item.ordinal) for item in items]
        main = [item if self.counts(item) else other for item, other in zip(items, passed, strict=True)]
        controls = [item if item.control else other for item, other in zip(items, passed, strict=True)]
        folded = ControlledState(self.main.fold(state.main, main), self.control.fold(state.control, controls))
        if state.left_out is None:
            return folded
        aside = [other if item.control or self.counts(item) else item for item, other in zip(items, passed, strict=True)]
        return replace(folded, left_out=self.main.fold(state.left_out, aside))

    def assess(self, state: ControlledState) -> tuple[GateEvidence, ...]:
        """Every gate of the candidate, its acceptance since it was frozen, what a left-out stratum says, and the A/A arm."""
        found = (*self.main.assess(state.main), *self._drift(state.main), *self._aside(state.left_out))
        return (*found, control.judge(self.control, state.control)) if self._asked else found

    def _aside(self, state: State | None) -> tuple[GateEvidence, ...]:
        """The gates about a left-out stratum alone, where the policy gives it a mode; none of them can promote, block or kill."""
        if state is None or not state.num_pairs or not self._shown:
            return ()
        (stratum,) = self._shown  # of two strata the flag takes one at least
        found = {gate.gate: gate for gate in self.main.assess(state)}
        proven = replace(found[losslessness.GATE], gate=f"{losslessness.GATE}_{stratum}", role=GateRole.EQUIVALENCE)
        return (proven, *(gate for name, gate in found.items() if STRATUM_GATES.get(name) == stratum))

    def _drift(self, state: State) -> tuple[GateEvidence, ...]:
        context = self.main.context
        if state.reference is None or state.drift is None:
            return ()
        limit = watch.threshold(context)
        return (drift_gate.shadow(context.gates.acceptance_drift_margin, limit, state.reference, state.drift),)
