"""Everything that the store in dictionaries keeps; the values are immutable, so copying the dictionaries copies it all."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from canary.domain.access import Key
from canary.domain.flag import Flag
from canary.domain.kills import KillOrder
from canary.domain.mirrored import MirrorCount
from canary.domain.notices import Notice
from canary.domain.observations import Observation
from canary.domain.pairs import Pair
from canary.domain.pins import Pin
from canary.domain.rollout import Rollout
from canary.domain.schedule import JobOrder, JobRun
from canary.domain.shadow_run import ShadowRun
from canary.domain.traffic import Prompt
from canary.flow import ports
from canary.flow.ports import Claim, KeptAnswer

OPEN = ("leased", "released")
Attempt = tuple[str, str, int]  # route, epoch, attempt


@dataclass(frozen=True, slots=True)
class Lease:
    """One claim and how it stands; `touched_at` is when it was last leased or buried."""

    claim: Claim
    state: str
    lease_until: float
    touched_at: float


@dataclass(slots=True)
class State:
    """Everything stored; the values are immutable, so copying the dictionaries copies the state."""

    prompts: dict[tuple[str, str], Prompt] = field(default_factory=dict)
    arrivals: dict[str, tuple[Prompt, ...]] = field(default_factory=dict)
    arrived_at: dict[tuple[str, str], float] = field(default_factory=dict)
    mirrored: dict[tuple[str, float], tuple[MirrorCount, ...]] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    ordinals: dict[Attempt, tuple[str, ...]] = field(default_factory=dict)
    pairs: dict[str, tuple[Pair, float]] = field(default_factory=dict)
    observations: dict[tuple[str, str], tuple[int, Observation]] = field(default_factory=dict)
    evidence: dict[Attempt, str] = field(default_factory=dict)
    calibrations: dict[Attempt, str] = field(default_factory=dict)
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    flags: dict[str, Flag] = field(default_factory=dict)
    flag_version: dict[str, int] = field(default_factory=lambda: {"version": 0})
    pins: dict[tuple[str, str], Pin] = field(default_factory=dict)
    kills: dict[str, tuple[int, KillOrder]] = field(default_factory=dict)
    policies: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    proposals: dict[str, ports.Proposal] = field(default_factory=dict)
    audit: dict[int, tuple[str, str]] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)
    answers: dict[tuple[str, str], tuple[KeptAnswer, float]] = field(default_factory=dict)
    notices: dict[str, Notice] = field(default_factory=dict)
    job_runs: dict[int, JobRun] = field(default_factory=dict)
    paused_jobs: dict[str, bool] = field(default_factory=dict)
    job_orders: dict[str, JobOrder] = field(default_factory=dict)
    shadow_runs: dict[tuple[str, float], ShadowRun] = field(default_factory=dict)
    leaders: dict[str, tuple[int, str, float]] = field(default_factory=dict)

    def copy(self) -> State:
        return State(**{f.name: dict(getattr(self, f.name)) for f in fields(self)})


@dataclass(frozen=True, slots=True)
class Repository:
    state: State
