"""What every part of the battery offers, so that folding is one addition and assessing is a list of parts.

A part turns a pair into increments (the worker does), names them, and reads its gates from their sums (assess does).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import DrafterKind, Pair
from canary.domain.policy import Gates

Vector = NDArray[np.float64]

MIN_CALIBRATING = 10


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the first ordinals of an attempt fix for the rest of it (statistics 0b.2).

    Args:
        tv: mean TV(p, a_k) per alternative, `unigram` included.
        tv_upper: its upper confidence bound.
        unigram: smoothed log-probability per token id seen; other ids get `unigram_floor`.
        num_requests: sampled requests that were measured.
        num_ordinals: ordinals that were asked to calibrate, tombstones and greedy ones included.
        hash: of all the above; every later pair names it.
    """

    tv: Mapping[str, float]
    tv_upper: Mapping[str, float]
    unigram: Mapping[int, float]
    unigram_floor: float
    num_requests: int
    num_ordinals: int
    hash: str

    @property
    def num_required(self) -> int:
        """Sampled requests that certificates need: 10, or half of the ordinals where the policy asks for fewer than 20."""
        return max(1, min(MIN_CALIBRATING, math.ceil(self.num_ordinals / 2)))


@dataclass(frozen=True, slots=True)
class Context:
    """Everything frozen at the start of an attempt that increments and verdicts depend on.

    Args:
        alpha: error budget of this attempt.
        calibration: None while the attempt calibrates: certificates add nothing then.
    """

    gates: Gates
    alpha: float
    drafter_kind: DrafterKind
    num_speculative_tokens: int
    exact_rows: bool
    vocab_size: int
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True)
class Sums:
    """One part's folded state.

    Args:
        names: as the part gave them.
        values: sums of the increments, in ordinal order.
        peaks: largest value so far of each of the part's `log_e` entries, looked at after every ordinal.
    """

    names: tuple[str, ...]
    values: Vector
    peaks: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        return float(self.values[self.names.index(name)])


class Part(Protocol):
    """One test or gate of the battery."""

    name: str

    def names(self, context: Context) -> tuple[str, ...]:
        """Names of the increments; independent of the calibration."""

    def increments(self, context: Context, pair: Pair) -> Vector:
        """What one pair adds; zeros where it has nothing to say."""

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        """Natural logs of the part's e-processes at these sums; the folder keeps their running maxima."""

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        """The part's gates, from its sums and peaks."""
