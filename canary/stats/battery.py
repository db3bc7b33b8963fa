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
from canary.stats.batch import Batch, Together
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
from canary.stats.wellformed import problems, shape_problem
from canary.stats.xreq import Xreq

Examined = tuple[str | None, Vector | None]  # why a pair is set aside, or what it stores


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
        return self.examine([pair])[0][0]

    def increments(self, pair: Pair) -> Vector | None:
        """What one pair stores, `[len(layout.stored_names)]`, all finite; None where the pair is set aside.

        A pair set aside is stored without increments and with `problem(pair)` as its error; folding counts it as failed.
        """
        return self.examine([pair])[0][1]

    def examine(self, pairs: Sequence[Pair]) -> list[Examined]:
        """Of every pair, why it is set aside or what it stores; together they take a fraction of the time of one by one.

        A pair's numbers are the same bits whichever others are given with it.
        """
        found: list[Examined] = [(shape_problem(pair, self.context), None) for pair in pairs]
        readable = [at for at, (why, _) in enumerate(found) if why is None]
        batch = Batch(self.context, [pairs[at] for at in readable])
        broken = problems(batch)
        if any(broken):
            for at, why in zip(readable, broken, strict=True):
                found[at] = why, None
            readable = [at for at, why in zip(readable, broken, strict=True) if why is None]
            batch = Batch(self.context, [pairs[at] for at in readable])
        for at, examined in zip(readable, self._numbers(batch), strict=True):
            found[at] = examined
        return found

    def _numbers(self, batch: Batch) -> list[Examined]:
        """Of well-formed pairs."""
        count = len(batch.pairs)
        if not count:
            return []
        found = np.zeros((count, len(self.layout.stored_names)))
        found[np.arange(count), [list(Stratum).index(pair.stratum) for pair in batch.pairs]] = 1.0
        for place in self.layout.places:
            part, width = place.part, len(place.stored_names)
            try:
                values = self.of_part(part, batch)
            except ValueError as error:
                if count > 1:  # one of them has a column that this part cannot read
                    return [examined for pair in batch.pairs for examined in self._numbers(Batch(self.context, [pair]))]
                return [(f"{part.name}: {error}", None)]
            if values.shape != (count, width):
                return [(f"{part.name}: increments are not {width} numbers", None)] * count
            found[:, place.stored] = values
        return [(why, None if why else row) for why, row in zip(self._not_finite(found), found, strict=True)]

    def of_part(self, part: Part, batch: Batch) -> Vector:
        """What each pair of a batch adds to one part, `[pairs, width]`."""
        if isinstance(part, Together):
            return part.increments_many(batch)
        return np.stack([part.increments(self.context, pair) for pair in batch.pairs])

    def _not_finite(self, found: Vector) -> list[str | None]:
        """The first increment of each pair that is not a finite number."""
        if np.isfinite(found).all():
            return [None] * len(found)
        broken = [np.flatnonzero(~np.isfinite(row)) for row in found]
        return [f"{self.layout.stored_names[b[0]]}: the increment is not a finite number" if b.size else None for b in broken]

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
