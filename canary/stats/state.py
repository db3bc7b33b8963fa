"""The folded evidence of one attempt: sums, peaks and counts, a few kilobytes of plain JSON however long the history.

It holds numbers and never interprets them; only `Battery.fold` changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from canary.domain.errors import ConflictError
from canary.stats.drift import Drift
from canary.stats.part import Vector
from canary.stats.reference import Reference
from canary.stats.watch import Watch

VERSION = 3


@dataclass(slots=True)
class State:
    """What is known after the first `folded` ordinals.

    Args:
        layout: fingerprint of the increments' names; sums of another layout cannot be continued.
        sums: of all increments, in the order of the battery's names.
        peaks: largest value so far of each e-process's log, looked at after every ordinal.
        kill_peak: largest log so far of the losslessness e-value, None before the first pair.
        folded: ordinals folded, which is also the next one.
        num_pairs: of those, pairs that entered; `num_failed` were tombstones or set aside.
        recent_lost: share of the latest ordinals that were, see `completeness`.
        calibration_hash: "" while calibrating pairs are folded.
        newest_pair_at: when the newest folded pair was stored, seconds since the epoch.
        carries: part -> what it remembers of the pair before.
        watch: the change detector.
        reference, drift: what the first requests accepted and the detector of a fall; None where acceptance is not counted.
    """

    layout: str
    sums: Vector
    peaks: Mapping[str, float]
    kill_peak: float | None
    carries: Mapping[str, Vector]
    watch: Watch
    folded: int = 0
    num_pairs: int = 0
    num_failed: int = 0
    recent_lost: float = 0.0
    calibration_hash: str = ""
    newest_pair_at: float | None = None
    reference: Reference | None = None
    drift: Drift | None = None

    def copy(self) -> State:
        """An independent copy; arrays and the watch are never written to, only replaced."""
        return replace(self, peaks=dict(self.peaks), carries=dict(self.carries))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; through text and back every float keeps its bits."""
        return {
            "version": VERSION,
            "layout": self.layout,
            "sums": self.sums.tolist(),
            "peaks": {key: float(value) for key, value in self.peaks.items()},
            "kill_peak": self.kill_peak,
            "carries": {name: carry.tolist() for name, carry in self.carries.items()},
            "watch": self.watch.to_json(),
            "folded": self.folded,
            "num_pairs": self.num_pairs,
            "num_failed": self.num_failed,
            "recent_lost": self.recent_lost,
            "calibration_hash": self.calibration_hash,
            "newest_pair_at": self.newest_pair_at,
            "reference": self.reference and self.reference.to_json(),
            "drift": self.drift and self.drift.to_json(),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> State:
        """The inverse of `to_json`.

        Raises:
            ConflictError: the body is of another version or lacks a field.
        """
        fields = dict(body)
        if fields.pop("version", None) != VERSION:
            raise ConflictError(f"evidence version is not {VERSION}", where="version", remedy="Open a new attempt.")
        try:
            fields["sums"] = np.array(fields["sums"], dtype=np.float64)
            fields["carries"] = {name: np.array(carry, dtype=np.float64) for name, carry in fields["carries"].items()}
            fields["watch"] = Watch.from_json(fields["watch"])
            fields["reference"] = fields["reference"] and Reference.from_json(fields["reference"])
            fields["drift"] = fields["drift"] and Drift.from_json(fields["drift"])
            return cls(**fields)
        except (TypeError, KeyError) as error:
            raise ConflictError(
                f"evidence has the wrong fields: {error}", where="evidence", remedy="Open a new attempt."
            ) from error
