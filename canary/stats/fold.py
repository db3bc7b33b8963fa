"""The one folder: adds stored increments in ordinal order, many at a time, and gives the bits of adding them one by one.

It never reads history and never skips an ordinal. Sums are running sums, added in order; everything read from them treats each
ordinal alone, so that a split of the work changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import Protocol

import numpy as np

from canary.domain.errors import ConflictError
from canary.domain.traffic import Stratum
from canary.stats import acceptance, completeness, drift, losslessness, reference, watch
from canary.stats.bounded import log_mixed
from canary.stats.layout import Layout
from canary.stats.part import Context, Vector
from canary.stats.state import State
from canary.stats.watch import Watch

CHUNK = 256  # ordinals at a time: their numbers stay within a processor's cache
LITTLE = np.dtype("<f8")

Kill = Callable[[Mapping[str, float], Vector], Vector]  # e-processes [ordinals] each, strata [ordinals, strata] -> log [ordinals]


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


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """An ordinal that another state counts (`controlled`): here it is passed by and adds nothing, not even a failure."""

    ordinal: int
    increments: bytes | None = None
    calibration_hash: str = ""
    stored_at: float = 0.0


def merged(log_e: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The e-processes of all parts by their own keys; `losslessness` names those that it weighs."""
    return {key: value for part in log_e.values() for key, value in part.items()}


class Folder:
    """Folds one attempt's items under one frozen context.

    Args:
        calibration_hash: of the context's calibration, "" while the attempt calibrates.
        kill: log of the e-value whose largest value the state keeps, see `log_kill`.
    """

    def __init__(self, context: Context, layout: Layout, calibration_hash: str, kill: Kill) -> None:
        self._kill = kill
        self._context = context
        self._layout = layout
        self._calibration_hash = calibration_hash
        accepting = (p.sums for p in layout.places if isinstance(p.part, acceptance.Acceptance))
        self._accepting = next(accepting, None) if context.num_speculative_tokens else None

    def start(self) -> State:
        """The state before the first ordinal."""
        return self._quiet.copy()

    @cached_property
    def _quiet(self) -> State:
        sums = np.zeros(len(self._layout.names))
        carries = {p.part.name: p.chained.first_carry(self._context) for p in self._layout.places if p.chained}
        quiet = Watch(np.zeros(len(self._layout.watch_weights)))
        state = State(self._layout.fingerprint, sums, self._keyed(self.log_e(sums)), None, carries, quiet)
        if self._accepting is not None:
            k = self._context.num_speculative_tokens
            state.reference, state.drift = reference.Reference.empty(k), drift.Drift.quiet(k)
        return state

    def fold(self, state: State, items: Iterable[FoldItem]) -> State:
        """See `Battery.fold`."""
        self.check_layout(state)
        after, rest = state.copy(), iter(items)
        while chunk := list(islice(rest, CHUNK)):
            entered = [item for item in chunk if self._enters(after, item)]
            if entered:
                self._add(after, entered)
        return after

    def check_layout(self, state: State) -> None:
        """Refuse a state of another layout."""
        if state.layout != self._layout.fingerprint:
            raise ConflictError(
                f"the evidence has layout {state.layout[:12]}, this version writes {self._layout.fingerprint[:12]}",
                where="layout",
                remedy="Open a new attempt: sums of another layout cannot be continued.",
            )

    def log_e(self, sums: Vector) -> dict[str, dict[str, float]]:
        """part -> its e-processes at these sums, [width] or [ordinals, width]."""
        return {p.part.name: p.part.log_e(self._context, sums[..., p.sums]) for p in self._layout.places}

    def log_kill(self, sums: Vector) -> Vector:
        """Log of the kill e-value at these sums, [ordinals, width] to [ordinals]."""
        return self._kill(merged(self.log_e(sums)), sums[:, : len(Stratum)])

    def _enters(self, state: State, item: FoldItem) -> bool:
        """Count one ordinal, which must be the next, of this calibration and of this size; False for one without numbers."""
        if item.ordinal != state.folded:
            raise ConflictError(
                f"ordinal {item.ordinal} cannot be folded after {state.folded - 1}",
                where="ordinal",
                remedy="Fold the contiguous prefix, each ordinal once.",
            )
        state.folded += 1
        if isinstance(item, Elsewhere):
            return False
        state.recent_lost = completeness.recent_share(state.recent_lost, not item.increments)
        if not item.increments:
            state.num_failed += 1
            return False
        self._check_calibration(state, item)
        size = len(item.increments)
        if size != len(self._layout.stored_names) * LITTLE.itemsize:
            raise ConflictError(
                f"pair at ordinal {item.ordinal} has {size // LITTLE.itemsize} increments, not {len(self._layout.stored_names)}",
                where="increments",
                remedy="It was computed by another version: open a new attempt.",
            )
        state.num_pairs += 1
        state.newest_pair_at = item.stored_at if state.newest_pair_at is None else max(state.newest_pair_at, item.stored_at)
        return True

    def _check_calibration(self, state: State, item: FoldItem) -> None:
        """Calibrating pairs come first; then every pair names the one frozen record."""
        named = item.calibration_hash
        if named not in ("", self._calibration_hash) or (state.calibration_hash and named != state.calibration_hash):
            raise ConflictError(
                f"pair at ordinal {item.ordinal} names calibration {named[:12] or 'none'}, the attempt's is "
                f"{(state.calibration_hash or self._calibration_hash)[:12] or 'none'}",
                where="calibration_hash",
                remedy="Compute its increments against the attempt's frozen record.",
            )
        state.calibration_hash = named

    def _add(self, state: State, items: Sequence[FoldItem]) -> None:
        """Add consecutive entered pairs to a state that is ours to change."""
        stored = np.frombuffer(b"".join(item.increments or b"" for item in items), LITTLE).reshape(len(items), -1)
        increments = self._chained(state, stored)
        sums = _running(state.sums, increments)
        log_e = self.log_e(sums)
        peaks = self._keyed({name: {key: np.max(value) for key, value in part.items()} for name, part in log_e.items()})
        state.peaks = {key: max(value, state.peaks[key]) for key, value in peaks.items()}
        kill = float(self._kill(merged(log_e), sums[:, : len(Stratum)]).max())
        state.kill_peak = kill if state.kill_peak is None else max(kill, state.kill_peak)
        ordinals = [item.ordinal for item in items]
        state.watch = self._watched(state.watch, increments, ordinals, sums)
        self._drifted(state, increments, ordinals)
        state.sums = sums[-1].copy()

    def _chained(self, state: State, stored: Vector) -> Vector:
        """Stored values to increments, [pairs, width]; carries move on."""
        if len(self._layout.names) == len(self._layout.stored_names) and not state.carries:
            return stored
        increments = np.empty((len(stored), len(self._layout.names)))
        carries, copied, taken = dict(state.carries), 0, 0  # numbers copied to the increments, and taken from what is stored
        for place in self._layout.places:
            if place.chained:
                increments[:, copied : place.sums.start] = stored[:, taken : place.stored.start]
                found, carry = place.chained.chain(self._context, stored[:, place.stored], carries[place.part.name])
                increments[:, place.sums], carries[place.part.name] = found, carry
                copied, taken = place.sums.stop, place.stored.stop
        increments[:, copied:] = stored[:, taken:]
        state.carries = carries
        return increments

    def _watched(self, before: Watch, increments: Vector, ordinals: Sequence[int], sums: Vector) -> Watch:
        if not self._layout.watched:
            return before
        bets = [part.log_request_bets(self._context, increments[:, at]) for part, at in self._layout.watched]
        return watch.advance(
            before,
            watch.threshold(self._context),
            np.concatenate(bets, axis=1),
            self._layout.watch_weights,
            ordinals,
            sums,
            self.log_kill,
        )

    def _drifted(self, state: State, increments: Vector, ordinals: Sequence[int]) -> None:
        """Take the pairs with drafts into the reference, and those after it into the detector of a fall."""
        if self._accepting is None or state.reference is None or state.drift is None:
            return
        present, accepted, drafts = acceptance.by_position(self._context, increments[:, self._accepting])
        state.reference, taken = reference.gather(state.reference, accepted, drafts)
        state.drift = drift.advance(
            state.drift,
            state.reference,
            self._context.gates.acceptance_drift_margin,
            watch.threshold(self._context),
            accepted[taken:],
            drafts[taken:],
            np.asarray(ordinals)[present][taken:].tolist(),
        )

    @staticmethod
    def _keyed(log_e: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Every part's e-processes in one mapping, as the state keeps them: `part.key`."""
        return {f"{name}.{key}": float(value) for name, part in log_e.items() for key, value in part.items()}


def _running(start: Vector, increments: Vector) -> Vector:
    """Running sums, [pairs, width]: plain additions, one pair after the other."""
    sums = np.empty_like(increments)
    before = start
    for row, added in zip(sums, increments, strict=True):
        np.add(before, added, out=row)
        before = row
    return sums


def log_kill(log_e: Mapping[str, float], strata: Vector) -> Vector:
    """Log of the losslessness e-value per ordinal, [ordinals].

    Args:
        log_e: every e-process, each [ordinals].
        strata: folded pairs per stratum, [ordinals, strata]; the weights depend on which of them are there.
    """
    found = np.full(len(strata), -np.inf)
    for rows in _alike(strata > 0):
        present = {stratum: float(strata[rows.start, at]) for at, stratum in enumerate(Stratum)}
        weights = losslessness.weights(log_e, present)
        if weights:
            logs = np.stack([np.asarray(log_e[key])[rows] for key in weights], axis=-1)  # [rows, e-processes]
            found[rows] = log_mixed(logs, np.array(list(weights.values())))
    return found


def _alike(present: np.ndarray) -> Iterator[slice]:
    """Runs of ordinals with the same strata, booleans [ordinals, strata]."""
    changes = np.flatnonzero((present[1:] != present[:-1]).any(axis=1)) + 1
    return (slice(low, high) for low, high in pairwise([0, *changes.tolist(), len(present)]))
