"""Units that a person has pinned to a variant: who counts when. A pin never puts traffic on a candidate that is not under way.

Pure. The flag carries the pins that are in force; a kill, a weight of 0 and the policy's match rules beat them (`domain.flag`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from canary.domain.errors import ConflictError, KilledError
from canary.domain.rollout import Rollout, State

MOST_PINS = 100  # of a route: every one of them is in every snapshot
LONGEST_UNIT = 200
LONGEST_SECONDS = 365 * 86_400.0

PINNABLE = (State.CANARY, State.FULL)
CARRYING = (*PINNABLE, State.HELD)  # held keeps its weight, and its pins with it


@dataclass(frozen=True, slots=True)
class Pin:
    """One unit's variant, whatever its bucket is.

    Args:
        epoch: the rollout's when the unit was pinned; a pin to the candidate is about that subject and no other.
        reason, actor: why and who, for people.
        pinned_at, expires_at: seconds since the epoch; None for no end.
    """

    route: str
    unit: str
    variant: str
    epoch: str
    reason: str
    actor: str
    pinned_at: float
    expires_at: float | None = None

    def expired(self, now: float) -> bool:
        """Whether its time is over."""
        return self.expires_at is not None and now >= self.expires_at

    def in_force(self, rollout: Rollout, now: float) -> bool:
        """Whether the flag carries it: one to the baseline always, one to the candidate while its own subject has traffic."""
        if self.expired(now):
            return False
        if self.variant == "baseline":
            return True
        return not rollout.killed and rollout.state in CARRYING and rollout.epoch == self.epoch


def in_force(pins: Iterable[Pin], rollout: Rollout, now: float) -> dict[str, str]:
    """Unit -> variant, as the route's flag carries them."""
    return {pin.unit: pin.variant for pin in pins if pin.in_force(rollout, now)}


def refuse_pin(rollout: Rollout, variant: str, others: int, *, killed: bool) -> None:
    """Whether the rollout lets one more unit be pinned.

    Args:
        others: pins of the route that have not expired, without that unit's own.
        killed: the flag's kill switch.

    Raises:
        KilledError: nobody gets the candidate of a killed route.
        ConflictError: the candidate is not certified for traffic now, or the route has as many pins as it may have.
    """
    where = f"rollouts/{rollout.route}"
    if variant == "candidate" and (killed or rollout.killed):
        remedy = f"Lift the kill first: canary rollouts unkill {rollout.route} --reason WHY."
        raise KilledError("the route is killed", where=where, remedy=remedy)
    if variant == "candidate" and rollout.state not in PINNABLE:
        raise ConflictError(
            f"a rollout in state {rollout.state.value} pins nobody to the candidate",
            where=where,
            remedy="Pin once a canary stage has begun; evidence leads there, not a pin.",
        )
    if others >= MOST_PINS:
        raise ConflictError(
            f"the route has {others} pins, and every snapshot carries them",
            where=f"routes/{rollout.route}/pins",
            remedy=f"Unpin some of the {MOST_PINS}, or leave requests out by the policy's match rules.",
        )
