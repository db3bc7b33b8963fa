"""What is known about a route at one moment: a verdict per gate, and the two e-values that may kill.

Evidence says what was measured; only `decide` says what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """What a gate found; could-not-measure is never failed, and no data never passes."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NO_DATA = "no_data"
    ERROR = "error"


class GateRole(StrEnum):
    """What a gate's verdict may do to traffic (DESIGN section 6)."""

    SAFETY = "safety"  # its failure kills
    ECONOMY = "economy"  # its failure keeps, holds or rolls back
    EQUIVALENCE = "equivalence"  # needed to advance; never removes traffic
    HARNESS = "harness"  # its failure says that the measuring is broken


class Source(StrEnum):
    """Where the evidence was gathered."""

    SHADOW = "shadow"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class GateEvidence:
    """One gate's finding.

    Args:
        gate: its name, e.g. `losslessness`, `bank_certificate`, `row_gate`, `acceptance`, `speed`.
        value: the estimate, in the metric's own unit; None if there is none.
        low, high: confidence bounds at the gate's alpha, None where one-sided or unknown.
        threshold: what the value is compared with (margin, floor, ratio or 1/alpha).
        n: observations used, in `unit`s.
        needed: further `unit`s until the gate can pass if nothing changes; None if unknown.
        progress: share of the evidence gathered, 0 to 1, where that makes sense.
        reason: stable code, e.g. `certified`, `too_few`, `wrong_residual`, `noise_floor`.
        sentence: the reason in words with its numbers.
        details: what else a person wants to see; plain JSON values.
    """

    gate: str
    role: GateRole
    verdict: Verdict
    reason: str
    sentence: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    threshold: float | None = None
    n: int = 0
    unit: str = "requests"
    needed: int | None = None
    progress: float | None = None
    source: Source = Source.SHADOW
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The gate's name among all gates of a route: `live speed` is the gate `speed` on live traffic."""
        return f"live {self.gate}" if self.source is Source.LIVE else self.gate


@dataclass(frozen=True, slots=True)
class Evidence:
    """All gates of one route's attempt, as folded so far.

    Args:
        folded: how many ordinals have been folded (the contiguous prefix).
        num_pairs: of those, pairs that entered the statistics; `num_failed` did not.
        subject: fingerprint of the engine that the flag turns on; `engine`: the one that ran the shadow.
        assessed_at: seconds since the epoch.
        newest_pair_at: when the newest folded pair was stored, None without one.
        num_control: A/A pairs that entered their own statistics; they count in `folded` and in neither of the two.
    """

    route: str
    epoch: str
    attempt: int
    folded: int
    num_pairs: int
    num_failed: int
    gates: tuple[GateEvidence, ...]
    subject: str
    engine: str
    assessed_at: float
    newest_pair_at: float | None = None
    num_control: int = 0

    def gate(self, name: str) -> GateEvidence | None:
        """The gate of that name, None if the policy has none."""
        return next((g for g in self.gates if g.gate == name), None)
