"""How much a gate counts for an advance, where a policy may choose.

What a promotion cannot do without has no mode: safety, certificates, acceptance and speed are always required.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """How much a gate counts."""

    REQUIRED = "required"  # an advance needs it to pass, and its failure does what its role says
    BEFORE_FULL = "before_full"  # only the advance to full needs it to pass; its failure counts at every stage
    WARN = "warn"  # never blocks and never removes traffic; a failure is said beside the decision
    OBSERVE = "observe"  # shown, nothing else


# Gates whose mode a policy may choose, with the mode that they have otherwise. All others are always required: without them a
# promotion would prove nothing.
MODES: Mapping[str, Mode] = {
    "ttft": Mode.REQUIRED,
    "ttft_tail": Mode.BEFORE_FULL,
    "memory": Mode.REQUIRED,
    "sample_ratio": Mode.REQUIRED,
    "acceptance_drift": Mode.WARN,
}


@dataclass(frozen=True, slots=True)
class GateMode:
    """A gate's mode where it is not its ordinary one, and why.

    Args:
        gate: one of `MODES`.
        mode: how much it counts.
        why: the reason in a sentence; shown wherever the verdict is.
    """

    gate: str
    mode: Mode
    why: str


# Gates about one stratum alone; the others judge all that the flag takes, and have no mode of a stratum. The first two are there
# for a left-out stratum only: what the losslessness e-value would say about it, which never kills.
STRATUM_GATES: Mapping[str, str] = {
    "losslessness_sampled": "sampled",
    "losslessness_greedy": "greedy",
    "bank_certificate": "sampled",
    "pit_certificate": "sampled",
    "request_certificate": "sampled",
    "gap_certificate": "greedy",
    "request_certificate_greedy": "greedy",
}


@dataclass(frozen=True, slots=True)
class StratumMode:
    """How much the certificates of a stratum count that the flag leaves out: `warn` or `observe`.

    Args:
        stratum: `greedy` or `sampled`.
        mode: `warn` says a failure beside the decision, `observe` only shows it.
        why: the reason in a sentence; shown wherever the verdict is.
    """

    stratum: str
    mode: Mode
    why: str


ASIDE = (Mode.WARN, Mode.OBSERVE)
