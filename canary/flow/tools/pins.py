"""Pinning a unit of a route to a variant, and taking the pin away: a person's order, with a reason, in the audit log.

Which pins count is `domain.pins`; the flag carries those, so that every way of reading a flag says the same of a pinned unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from canary.domain.errors import NotFoundError, RequestError
from canary.domain.flag import VARIANTS, Flag
from canary.domain.pins import LONGEST_SECONDS, LONGEST_UNIT, Pin, in_force, refuse_pin
from canary.domain.rollout import Rollout
from canary.flow.attempt import locked_rollout
from canary.flow.kills import said
from canary.flow.ports import Store, Transaction
from canary.flow.tools.reports import rfc3339

Check = Callable[[Pin | None], None]


def unchecked(pin: Pin | None) -> None:
    """The check of a caller that expects nothing."""


def pin(
    store: Store,
    route: str,
    unit: str,
    variant: str,
    reason: str,
    actor: str,
    now: float,
    *,
    seconds: float | None = None,
    check: Check = unchecked,
) -> Pin:
    """Give the unit a variant whatever its bucket is; a pin that it has already is replaced.

    Args:
        variant: `baseline`, in every state; `candidate`, only in a canary stage or at full.
        seconds: until the pin ends; None for no end.
        check: raises if the unit's present pin is not as the caller expects; called under the route's row lock.

    Raises:
        NotFoundError: there is no such route.
        KilledError, ConflictError: see `domain.pins.refuse_pin`.
        RequestError: names the field that is wrong.
    """
    unit, reason, actor = _unit(unit), said("reason", reason), said("actor", actor)
    if variant not in VARIANTS:
        raise RequestError(f"{variant[:50]!r} is no variant", where="/variant", remedy=f"Write {' or '.join(VARIANTS)}.")
    if seconds is not None and not 0 < seconds <= LONGEST_SECONDS:
        remedy = "Leave it out for a pin without an end."
        raise RequestError(f"must be above 0 and at most {LONGEST_SECONDS:.0f} s", where="/expires_seconds", remedy=remedy)
    with store.transaction() as tx:
        rollout = locked_rollout(tx, route)
        standing = _standing(tx, route, now)
        check(standing.get(unit))
        flag = tx.flags.get(route) or Flag.initial(route)
        refuse_pin(rollout, variant, len(standing.keys() - {unit}), killed=flag.killed)
        ends = None if seconds is None else now + seconds
        made = Pin(route, unit, variant, rollout.epoch, reason, actor, now, ends)
        tx.pins.put(made)
        _write(tx, rollout, flag, "pin", made, f"{unit} is pinned to {variant}: {reason}", actor, now)
        tx.commit()
    return made


def unpin(store: Store, route: str, unit: str, reason: str, actor: str, now: float, *, check: Check = unchecked) -> Pin:
    """Let the unit's bucket decide again; returns the pin that it had.

    Raises:
        NotFoundError: there is no such route, or the unit is not pinned.
        RequestError: the reason or the actor is empty or too long.
    """
    reason, actor = said("reason", reason), said("actor", actor)
    with store.transaction() as tx:
        rollout = locked_rollout(tx, route)
        old = _standing(tx, route, now).get(unit)
        if old is None:
            raise missing(route)
        check(old)
        tx.pins.drop(route, unit)
        flag = tx.flags.get(route) or Flag.initial(route)
        _write(tx, rollout, flag, "unpin", old, f"{unit} is no longer pinned to {old.variant}: {reason}", actor, now)
        tx.commit()
    return old


def listed(tx: Transaction, route: str, now: float) -> list[Pin]:
    """The route's pins that have not expired, by unit."""
    return list(_standing(tx, route, now).values())


def one(tx: Transaction, route: str, unit: str, now: float) -> Pin:
    """One unit's pin.

    Raises:
        NotFoundError: it has none.
    """
    found = _standing(tx, route, now).get(unit)
    if found is None:
        raise missing(route)
    return found


def described(pin: Pin, rollout: Rollout, now: float) -> dict[str, object]:
    """A pin for people; `in_force` is whether the route's flag carries it now."""
    return {
        "route": pin.route,
        "unit": pin.unit,
        "variant": pin.variant,
        "in_force": pin.in_force(rollout, now),
        "reason": pin.reason,
        "actor": pin.actor,
        "pinned_at": rfc3339(pin.pinned_at),
        "expires_at": rfc3339(pin.expires_at),
    }


def missing(route: str) -> NotFoundError:
    """The error of a unit that is not pinned."""
    return NotFoundError("the unit is not pinned", where="/unit", remedy=f"List the pins: canary flags pins {route}.")


def expire(tx: Transaction, now: float) -> int:
    """Forget pins whose time is over, each with an audit event; returns how many. The caller commits."""
    over = 0
    for rollout in tx.rollouts.list():
        for old in tx.pins.list(rollout.route):
            if old.expired(now):
                over += 1
                tx.pins.drop(old.route, old.unit)
                body = {**asdict(old), "sentence": f"The pin of {old.unit} to {old.variant} expired."}
                tx.audit.append(old.route, "pin_expired", "scheduler", body, now)
    return over


def _standing(tx: Transaction, route: str, now: float) -> dict[str, Pin]:
    return {pin.unit: pin for pin in tx.pins.list(route) if not pin.expired(now)}


def _write(tx: Transaction, rollout: Rollout, flag: Flag, kind: str, about: Pin, sentence: str, actor: str, now: float) -> None:
    shown = replace(flag, pins=in_force(tx.pins.list(rollout.route), rollout, now))
    if shown != flag:
        tx.flags.put(shown)
    body = {**asdict(about), "sentence": sentence, "state": rollout.state.value}
    tx.audit.append(rollout.route, kind, actor, body, now)


def _unit(unit: str) -> str:
    # As it is sent when a flag is resolved: not a blank is taken away.
    if not 0 < len(unit) <= LONGEST_UNIT or not unit.isprintable():
        remedy = "Name it exactly as the gateway does, its targeting key."
        raise RequestError(f"must be 1 to {LONGEST_UNIT} printable characters", where="/unit", remedy=remedy)
    return unit
