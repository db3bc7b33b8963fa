"""The whole list of tests over one attempt: increments per pair, one fold in ordinal order, and the gates at the end.

Folding is plain float64 addition, one ordinal after the other, so that any split of the work gives the same bits. It never reads
history, and it never skips an ordinal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from canary.domain.errors import ConflictError
from canary.domain.evidence import GateEvidence
from canary.domain.pairs import Pair
from canary.domain.traffic import Stratum
from canary.stats import completeness, losslessness
from canary.stats.acceptance import Acceptance
from canary.stats.bank import Bank
from canary.stats.certificates import Certificates
from canary.stats.errors import Errors
from canary.stats.greedy import Greedy
from canary.stats.part import Context, Part, Sums, Vector
from canary.stats.pit import Pit
from canary.stats.rows import Outliers, RowGate
from canary.stats.speed import Speed
from canary.stats.state import State
from canary.stats.strata import untested_gate
from canary.stats.suspects import Diagnosis
from canary.stats.wellformed import problem

LITTLE = np.dtype("<f8")
STRATA = tuple(f"strata.{stratum}" for stratum in Stratum)  # the first increments: 1 in the pair's stratum


class FoldItem(Protocol):
    """One finished ordinal (`flow.ports.FoldItem` meets this)."""

    @property
    def ordinal(self) -> int: ...

    @property
    def increments(self) -> bytes | None: ...

    @property
    def calibration_hash(self) -> str: ...

    @property
    def stored_at(self) -> float: ...


def default_parts() -> tuple[Part, ...]:
    """Every part, in the order in which their increments are stored."""
    return (
        Bank(), Pit(), Certificates(), RowGate(), Outliers(), Greedy(), Errors(), Acceptance(), Speed(),
    )  # fmt: skip


def pack(increments: Vector) -> bytes:
    """Increments as little-endian float64 bytes."""
    return np.ascontiguousarray(increments, dtype=LITTLE).tobytes()


def unpack(block: bytes) -> Vector:
    """The inverse of `pack`."""
    return np.frombuffer(block, dtype=LITTLE).astype(np.float64)


def _merged(log_e: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The e-processes of all parts by their own keys; `losslessness` names those that it weighs."""
    return {key: value for part in log_e.values() for key, value in part.items()}


class Battery:
    """All parts of one attempt under one frozen context.

    Args:
        context: of the attempt, with its calibration once that is stored.
        parts: in storage order; all of them by default.
    """

    def __init__(self, context: Context, parts: Sequence[Part] | None = None) -> None:
        self.context = context
        self.parts = tuple(default_parts() if parts is None else parts)
        self._names = [part.names(context) for part in self.parts]
        ends = (len(STRATA) + np.cumsum([len(names) for names in self._names])).tolist()
        self._slices = [slice(end - len(names), end) for end, names in zip(ends, self._names, strict=True)]
        self.names = STRATA + tuple(f"{p.name}.{n}" for p, names in zip(self.parts, self._names, strict=True) for n in names)
        self.layout = hashlib.sha256(json.dumps(self.names).encode()).hexdigest()

    @property
    def calibration_hash(self) -> str:
        """Of the context's calibration; "" while the attempt calibrates."""
        return "" if self.context.calibration is None else self.context.calibration.hash

    def problem(self, pair: Pair) -> str | None:
        """Why a pair has to be set aside, None if it may enter the statistics; see `increments`."""
        return self._examine(pair)[0]

    def increments(self, pair: Pair) -> Vector | None:
        """What one pair adds, `[len(names)]`, all finite; None where the pair is set aside.

        A pair set aside is stored without increments and with `problem(pair)` as its error; folding counts it as failed.
        """
        return self._examine(pair)[1]

    def _examine(self, pair: Pair) -> tuple[str | None, Vector | None]:
        """(why it is set aside, None) or (None, its increments)."""
        if (why := problem(pair, self.context)) is not None:
            return why, None
        values = [np.array([float(pair.stratum is stratum) for stratum in Stratum])]
        for part, names in zip(self.parts, self._names, strict=True):
            try:
                found = part.increments(self.context, pair)
            except ValueError as error:
                return f"{part.name}: {error}", None
            if found.shape != (len(names),) or not np.all(np.isfinite(found)):
                return f"{part.name}: increments are not {len(names)} finite numbers", None
            values.append(found)
        return None, np.concatenate(values)

    def start(self) -> State:
        """The state before the first ordinal."""
        sums = np.zeros(len(self.names))
        return State(self.layout, sums, self._keyed(self._log_e(sums)), kill_peak=None)

    def fold(self, state: State, items: Iterable[FoldItem]) -> State:
        """Add finished ordinals, one after the other; the given state stays as it was.

        Raises:
            ConflictError: an ordinal is missing or repeated, an item was computed against another calibration or layout, or the
                state is of another layout. Nothing is half folded.
        """
        self._check_layout(state)
        after = state.copy()
        for item in items:
            self._add(after, item)
        return after

    def assess(self, state: State) -> tuple[GateEvidence, ...]:
        """Every gate at this state: losslessness, those about the attempt as a whole, then those of the parts in their order."""
        self._check_layout(state)
        log_e = self._log_e(state.sums)
        sums = {
            part.name: Sums(names, state.sums[at], {key: state.peaks[f"{part.name}.{key}"] for key in log_e[part.name]})
            for part, names, at in zip(self.parts, self._names, self._slices, strict=True)
        }
        found = next((p.diagnosis(self.context, sums[p.name]) for p in self.parts if isinstance(p, Bank)), Diagnosis())
        peak = state.kill_peak if state.kill_peak is not None else 0.0
        gates = [losslessness.judge(self.context, _merged(log_e), self._strata(state.sums), peak, found)]
        gates.append(completeness.judge(state.folded, state.num_failed))
        if (untested := untested_gate(self._strata(state.sums))) is not None:
            gates.append(untested)
        for part in self.parts:
            gates += part.assess(self.context, sums[part.name])
        return tuple(gates)

    def _add(self, state: State, item: FoldItem) -> None:
        if item.ordinal != state.folded:
            raise ConflictError(
                f"ordinal {item.ordinal} cannot be folded after {state.folded - 1}",
                where="ordinal",
                remedy="Fold the contiguous prefix, each ordinal once.",
            )
        state.folded += 1
        if not item.increments:
            state.num_failed += 1
            return
        self._check_calibration(state, item)
        found = unpack(item.increments)
        if found.shape != state.sums.shape:
            raise ConflictError(
                f"pair at ordinal {item.ordinal} has {len(found)} increments, not {len(state.sums)}",
                where="increments",
                remedy="It was computed by another version: open a new attempt.",
            )
        state.sums = state.sums + found
        state.num_pairs += 1
        state.newest_pair_at = item.stored_at if state.newest_pair_at is None else max(state.newest_pair_at, item.stored_at)
        log_e = self._log_e(state.sums)
        state.peaks = {key: max(value, state.peaks[key]) for key, value in self._keyed(log_e).items()}
        kill = losslessness.log_kill_e(_merged(log_e), self._strata(state.sums))
        state.kill_peak = kill if state.kill_peak is None else max(kill, state.kill_peak)

    def _log_e(self, sums: Vector) -> dict[str, dict[str, float]]:
        """part -> its e-processes at these sums."""
        return {p.name: p.log_e(self.context, sums[at]) for p, at in zip(self.parts, self._slices, strict=True)}

    @staticmethod
    def _keyed(log_e: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Every part's e-processes in one mapping, as the state keeps them: `part.key`."""
        return {f"{name}.{key}": float(value) for name, part in log_e.items() for key, value in part.items()}

    def _strata(self, sums: Vector) -> dict[Stratum, float]:
        """Folded pairs of each stratum."""
        return {stratum: float(sums[at]) for at, stratum in enumerate(Stratum)}

    def _check_layout(self, state: State) -> None:
        if state.layout != self.layout:
            raise ConflictError(
                f"the evidence has layout {state.layout[:12]}, this version writes {self.layout[:12]}",
                where="layout",
                remedy="Open a new attempt: sums of another layout cannot be continued.",
            )

    def _check_calibration(self, state: State, item: FoldItem) -> None:
        """Calibrating pairs come first; then every pair names the one frozen record."""
        named = item.calibration_hash
        if named not in ("", self.calibration_hash) or (state.calibration_hash and named != state.calibration_hash):
            raise ConflictError(
                f"pair at ordinal {item.ordinal} names calibration {named[:12] or 'none'}, the attempt's is "
                f"{(state.calibration_hash or self.calibration_hash)[:12] or 'none'}",
                where="calibration_hash",
                remedy="Compute its increments against the attempt's frozen record.",
            )
        state.calibration_hash = named
