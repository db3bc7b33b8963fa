"""What every part of the battery offers, so that folding is one addition and assessing is a list of parts.

A part turns a pair into increments (the worker does), names them, and reads its gates from their sums (assess does).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import DrafterKind, Pair, Scheme
from canary.domain.policy import Gates
from canary.stats.shares import Kept, Losses, Split

Vector = NDArray[np.float64]

MIN_CALIBRATING = 10
UNCOUNTED = (
    "the mirrored share and the mirrored sample against the route's traffic: nobody counted what was seen",
    "completed against claimed ordinals: nobody counted them",
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the first ordinals of an attempt fix for the rest of it (statistics 0b.2).

    Args:
        tv: mean TV(p, a_k) per alternative, `unigram` included.
        tv_upper: its upper confidence bound.
        unigram: smoothed log-probability per token id seen; other ids get `unigram_floor`.
        num_requests: sampled requests that were measured.
        num_ordinals: ordinals that were asked to calibrate, tombstones and greedy ones included.
        ttft_p95: 95th percentile of the baseline's TTFT in seconds; None where too few of the ordinals were timed.
        hash: of all the above; every later pair names it.
    """

    tv: Mapping[str, float]
    tv_upper: Mapping[str, float]
    unigram: Mapping[int, float]
    unigram_floor: float
    num_requests: int
    num_ordinals: int
    hash: str
    ttft_p95: float | None = None

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
        error_shares: e-processes among which the errors e-value's budget is shared.
        structured: whether the route's answers are structured.
        structured_note: how the arms came by them, said with every verdict about them.
        memory: bytes by name, as the engine reported them (`stats.memory`); empty if it did not.
        max_requests: pairs after which a gate that still waits is `expired`; None for no limit.
        scheme: how the engine judges drafts; tests that it would fail without a fault do not bet.
        traffic: counts that only verdicts read: what was mirrored and completed against what was planned (`stats.ratio`).
        untested: what those counts cannot tell, each with its reason.
    """

    gates: Gates
    alpha: float
    drafter_kind: DrafterKind
    num_speculative_tokens: int
    exact_rows: bool
    vocab_size: int
    calibration: Calibration | None = None
    error_shares: int = 1
    structured: bool = False
    structured_note: str = ""
    memory: Mapping[str, float] = field(default_factory=dict)
    traffic: tuple[Split | Losses | Kept, ...] = ()
    untested: tuple[str, ...] = UNCOUNTED
    scheme: Scheme = Scheme.TOKEN
    max_requests: int | None = None

    @property
    def error_alpha(self) -> float:
        """Budget of each e-process of the errors e-value: a union bound over its shares (statistics 0b.4)."""
        return self.alpha / self.error_shares


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
        """One sum; where `values` are `[..., width]`, one for each of the leading axes, which arithmetic treats alike."""
        return cast(float, self.values[..., self.names.index(name)][()])


class Part(Protocol):
    """One test or gate of the battery."""

    name: str

    def names(self, context: Context) -> tuple[str, ...]:
        """Names of the increments; independent of the calibration."""

    def increments(self, context: Context, pair: Pair) -> Vector:
        """What one pair adds; zeros where it has nothing to say."""

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        """Natural logs of the part's e-processes at these sums; the folder keeps their running maxima.

        Args:
            values: `[width]`, or `[ordinals, width]`: the folder looks at many ordinals at once. So this uses numpy's functions
                along the last axis (never `min`, `math.log`, `if`), and gives the same bits for any number of ordinals.

        Returns:
            key -> float, or `[ordinals]`.
        """

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        """The part's gates, from its sums and peaks."""


@runtime_checkable
class Chained(Part, Protocol):
    """A part whose contribution depends on the pair before: what a pair stores is raw, and the folder turns it into increments.

    Its `increments` are the raw values. What it has to remember of the pair before is the *carry*, kept in the state.
    """

    def raw_names(self, context: Context) -> tuple[str, ...]:
        """Names of the raw values that are stored with a pair; `names` are those of the increments made from them."""

    def first_carry(self, context: Context) -> Vector:
        """The carry before any pair."""

    def chain(self, context: Context, raw: Vector, carry: Vector) -> tuple[Vector, Vector]:
        """Increments of consecutive entered pairs, the same bits however they are split.

        Args:
            raw: stored values, `[pairs, len(raw_names)]`, in ordinal order.
            carry: as left by the pairs before.

        Returns:
            (increments, `[pairs, len(names)]`; the carry after the last of them).
        """


@runtime_checkable
class Watched(Part, Protocol):
    """A part whose e-process is a mixture of products over requests, so that a change can be looked for from any request on."""

    def request_weights(self, context: Context) -> Vector:
        """Weight of every bet, `[bets]`; they sum to at most 1."""

    def log_request_bets(self, context: Context, increments: Vector) -> Vector:
        """Log of what every bet multiplies its wealth by at each request, `[pairs, bets]`.

        Args:
            increments: of single pairs, `[pairs, len(names)]`.
        """
