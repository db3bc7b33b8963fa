"""The whole list of tests over one attempt: increments per pair, one fold in ordinal order, and the gates at the end.

Folding is plain float64 addition, one ordinal after the other, so that any split of the work gives the same bits. It never reads
history, and it never skips an ordinal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import Pair
from canary.domain.traffic import Stratum
from canary.stats import completeness, losslessness, memory, shortfall, terms, watch
from canary.stats.acceptance import Acceptance
from canary.stats.bank import Bank
from canary.stats.certificates import Certificates
from canary.stats.components import Components
from canary.stats.errors import Errors
from canary.stats.fold import LITTLE, Folder, Kill, log_kill, merged
from canary.stats.fold import FoldItem as FoldItem
from canary.stats.greedy import Greedy
from canary.stats.layout import Layout
from canary.stats.part import Context, Part, Sums, Vector
from canary.stats.pit import Pit
from canary.stats.ratio import SampleRatio
from canary.stats.rows import Outliers, RowGate
from canary.stats.speed import Speed
from canary.stats.state import State
from canary.stats.strata import untested_gate
from canary.stats.structured import StructuredValidity
from canary.stats.suspects import SUSPECTS, Diagnosis, Suspect
from canary.stats.ttft import Ttft
from canary.stats.wellformed import problem
from canary.stats.xreq import Xreq


def default_parts() -> tuple[Part, ...]:
    """Every part, in the order in which their increments are stored."""
    return (
        Bank(), Pit(), Certificates(), RowGate(), Outliers(), Greedy(), Errors(), Acceptance(), Speed(),
        Xreq(), Ttft(), SampleRatio(), StructuredValidity(), Components(),
    )  # fmt: skip


def pack(increments: Vector) -> bytes:
    """Increments as little-endian float64 bytes."""
    return np.ascontiguousarray(increments, dtype=LITTLE).tobytes()


def unpack(block: bytes) -> Vector:
    """The inverse of `pack`."""
    return np.frombuffer(block, dtype=LITTLE).astype(np.float64)


class Battery:
    """All parts of one attempt under one frozen context.

    Args:
        context: of the attempt, with its calibration once that is stored.
        parts: in storage order; all of them by default.
        kill: see `Folder`; the losslessness e-value by default.
    """

    def __init__(self, context: Context, parts: Sequence[Part] | None = None, kill: Kill = log_kill) -> None:
        self.context = context
        self.parts = tuple(default_parts() if parts is None else parts)
        self.layout = Layout(context, self.parts)
        self.names = self.layout.names
        self._folder = Folder(context, self.layout, self.calibration_hash, kill)

    @property
    def calibration_hash(self) -> str:
        """Of the context's calibration; "" while the attempt calibrates."""
        return "" if self.context.calibration is None else self.context.calibration.hash

    def problem(self, pair: Pair) -> str | None:
        """Why a pair has to be set aside, None if it may enter the statistics; see `increments`."""
        return self._examine(pair)[0]

    def increments(self, pair: Pair) -> Vector | None:
        """What one pair stores, `[len(layout.stored_names)]`, all finite; None where the pair is set aside.

        A pair set aside is stored without increments and with `problem(pair)` as its error; folding counts it as failed.
        """
        return self._examine(pair)[1]

    def _examine(self, pair: Pair) -> tuple[str | None, Vector | None]:
        """(why it is set aside, None) or (None, its increments)."""
        if (why := problem(pair, self.context)) is not None:
            return why, None
        found = np.zeros(len(self.layout.stored_names))
        found[list(Stratum).index(pair.stratum)] = 1.0
        for place in self.layout.places:
            name, width = place.part.name, len(place.stored_names)
            try:
                values = place.part.increments(self.context, pair)
            except ValueError as error:
                return f"{name}: {error}", None
            if values.shape != (width,):
                return f"{name}: increments are not {width} numbers", None
            found[place.stored] = values
        if not np.isfinite(found).all():
            where = self.layout.stored_names[int(np.flatnonzero(~np.isfinite(found))[0])]
            return f"{where}: the increment is not a finite number", None
        return None, found

    def start(self) -> State:
        """The state before the first ordinal."""
        return self._folder.start()

    def fold(self, state: State, items: Iterable[FoldItem]) -> State:
        """Add finished ordinals, one after the other; the given state stays as it was.

        Raises:
            ConflictError: an ordinal is missing or repeated, an item was computed against another calibration or layout, or the
                state is of another layout. Nothing is half folded.
        """
        return self._folder.fold(state, items)

    def e_values(self, state: State) -> dict[str, float]:
        """Log of every e-process at this state, by its own key."""
        return {key: float(value) for key, value in merged(self._folder.log_e(state.sums)).items()}

    def strata(self, state: State) -> dict[Stratum, float]:
        """Folded pairs of each stratum."""
        return {stratum: float(state.sums[at]) for at, stratum in enumerate(Stratum)}

    def sums_of(self, state: State, name: str) -> Sums:
        """The sums and peaks of one part, by its name."""
        place, prefix = next(p for p in self.layout.places if p.part.name == name), f"{name}."
        peaks = {key.removeprefix(prefix): value for key, value in state.peaks.items() if key.startswith(prefix)}
        return Sums(place.names, state.sums[place.sums], peaks)

    def assess(self, state: State) -> tuple[GateEvidence, ...]:
        """Every gate at this state: losslessness, those about the attempt as a whole, then those of the parts in their order."""
        self._folder.check_layout(state)
        sums, strata = self._by_part(state), self.strata(state)
        peak = state.kill_peak if state.kill_peak is not None else 0.0
        peaks = merged({name: each.peaks for name, each in sums.items()})
        gates = [losslessness.judge(self.context, self.e_values(state), strata, peak, self._diagnosis(sums), peaks)]
        gates.append(completeness.judge(state.num_pairs + state.num_failed, state.num_failed, state.recent_lost))
        watched, weights = [part.name for part, _ in self.layout.watched], self.layout.watch_weights
        gates.append(watch.judge(self.context, state.watch, weights, state.num_pairs, self._suspect(state), watched))
        if (untested := untested_gate(strata)) is not None:
            gates.append(untested)
        gates += memory.judge(self.context)
        for part in self.parts:
            gates += part.assess(self.context, sums[part.name])
        return shortfall.told(terms.stated(gates), strata, self.context.max_requests)

    def _by_part(self, state: State) -> dict[str, Sums]:
        return {part.name: self.sums_of(state, part.name) for part in self.parts}

    def _diagnosis(self, sums: Mapping[str, Sums]) -> Diagnosis:
        return next((p.diagnosis(self.context, sums[p.name]) for p in self.parts if isinstance(p, Bank)), Diagnosis())

    def _suspect(self, state: State) -> Suspect | None:
        """What explains the evidence since the change detector's alarm; None without any."""
        alarm = state.watch.alarm
        if alarm is None or not alarm.pairs:
            return None
        since = replace(state, sums=state.sums - alarm.sums)
        found = losslessness.suspect(self.e_values(since), self.strata(since), self._diagnosis(self._by_part(since)))
        return SUSPECTS[found]
