"""Where one route's rollout stands. The kill is not here: it belongs to the flag and beats every state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Rollout states (DESIGN section 6)."""

    PENDING = "pending"
    SHADOW = "shadow"
    CANARY = "canary"
    FULL = "full"
    HELD = "held"
    ROLLED_BACK = "rolled_back"
    ARCHIVED = "archived"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One route's rollout row.

    Args:
        policy_hash: the policy pinned when the rollout started.
        stage: index into the policy's stages; kept while held.
        epoch: fingerprint of the subject; "" until an engine has announced it.
        attempt: run of evidence within the epoch, from 1.
        entered_at: when the stage was entered, seconds since the epoch.
        baked_seconds: healthy assessed time in the stage.
        assessed_at: when it was last assessed, None before.
        errors: consecutive assessments that could not measure.
        killed: mirrors the flag's kill, so that shadow on a killed route stops.
        reason: why it is where it is: stable code and sentence.
        ramp_weight: basis points from which the weight is coming down; 0 without a ramp.
        ramp_start, ramp_end: when the ramp began and when it reaches 0, seconds since the epoch.
        version: rises by one with every write.
        rollbacks: of this epoch so far; the cool-down grows with them.
        cool_until: before then the route's traffic stays on the baseline, whatever the evidence says; seconds since the epoch.
        asked_at: since when the next stage waits for a person, seconds since the epoch; 0 while it does not.
        approved_at, approved_by: a person's agreement to the next stage, and to no other; 0 and "" without one.
    """

    route: str
    policy_hash: str
    state: State
    stage: int
    epoch: str
    attempt: int
    entered_at: float
    baked_seconds: float = 0.0
    assessed_at: float | None = None
    errors: int = 0
    killed: bool = False
    reason: str = ""
    ramp_weight: int = 0
    ramp_start: float = 0.0
    ramp_end: float = 0.0
    version: int = 1
    rollbacks: int = 0
    cool_until: float = 0.0
    asked_at: float = 0.0
    approved_at: float = 0.0
    approved_by: str = ""

    @property
    def wants_shadow(self) -> bool:
        """Whether workers should announce themselves and run pairs for it."""
        return not self.killed and self.state in (State.PENDING, State.SHADOW, State.CANARY, State.FULL, State.HELD)
