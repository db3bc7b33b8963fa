"""The kill switch in the store: kill orders are settled here, each exactly once, and undone only by a person.

Taking a kill never waits for this: `canary.kills` has it in memory and on disk before the store is asked.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from canary.domain.errors import CanaryError, ConflictError, KilledError, RequestError
from canary.domain.flag import Flag
from canary.domain.kills import ALL, DRILL, Act, KillOrder, Kills, ends_first
from canary.domain.moves import facts_of
from canary.domain.orders import unkill as stepped_unkill
from canary.domain.rollout import Rollout
from canary.flow.attempt import locked_rollout, pinned_policy
from canary.flow.notify import tell
from canary.flow.ports import Store, Transaction
from canary.flow.tools.audits import grounds
from canary.flow.walk.publish import publish

MAX_REASON = 500


def kill(store: Store, route: str, reason: str, actor: str, now: float) -> Flag:
    """Turn the route's kill switch on: every unit gets the baseline from the next snapshot on, whatever the rollout's state.

    All of it changes in one transaction. A second kill changes nothing and keeps the first one's reason.

    Args:
        reason: why, for people.
        actor: who, for the audit log.
        now: seconds since the epoch.

    Raises:
        NotFoundError: there is no such route; names those there are.
        RequestError: the reason or the actor is empty or too long.
    """
    reason, actor = said("reason", reason), said("actor", actor)
    with store.transaction() as tx:
        rollout = locked_rollout(tx, route)
        before = tx.flags.get(route) or Flag.initial(route)
        if before.killed and rollout.killed:
            return before
        order = orders_about(tx, route).kill(route, reason, actor, now, secrets.token_hex(16), above=before.kill_epoch)
        tx.kills.add(order)
        flag = _switch_off(tx, rollout, order, now)
        tx.commit()
    return flag


def kill_all(store: Store, reason: str, actor: str, now: float) -> KillOrder:
    """Turn the kill switch of every route on, of those to come too; a second kill changes nothing.

    Raises:
        RequestError: the reason or the actor is empty or too long.
    """
    reason, actor = said("reason", reason), said("actor", actor)
    with store.transaction() as tx:
        above = tx.flags.snapshot(now).kill_epoch
        known = orders_about(tx, ALL)
    if standing := known.standing(ALL):
        return standing[0]
    order = known.kill(ALL, reason, actor, now, secrets.token_hex(16), above=above)
    settle(store, Kills.of([order]), [order], now)
    return order


def settle(store: Store, known: Kills, orders: Sequence[KillOrder], now: float) -> list[KillOrder]:
    """Write orders that were taken elsewhere, what ends a kill before it, each with its audit events in a transaction of its own.

    Args:
        known: every order that is known where they come from; of a kill that was undone since, only the record is written.
        orders: those to write; what the store has already is passed over.

    Returns:
        Those that were new to the store.
    """
    new = []
    for order in sorted(orders, key=ends_first):
        with store.transaction() as tx:
            killed = known.standing(order.scope)
            # Rollouts are locked before the order is added: the other way round two writers could wait for each other.
            rollouts = _locked(tx, order.scope) if order in killed else []
            if not tx.kills.add(order):
                continue
            for rollout in rollouts:
                _switch_off(tx, rollout, order, now)
            if order.scope not in {rollout.route for rollout in rollouts}:
                body = {"sentence": order.sentence, "order": order.to_dict(), "routes": [r.route for r in rollouts]}
                # A kill that was undone before it came here moved nothing, and a replay of the log must not think that it did.
                late = order.act is Act.KILL and order not in killed
                tx.audit.append(order.scope, "kill_recorded" if late else order.act.value, order.actor, body, now)
            tx.commit()
        new.append(order)
    return new


def unkill(store: Store, route: str, reason: str, actor: str, now: float) -> Rollout:
    """Undo a kill: the route starts again in shadow, at weight 0, with a new attempt.

    Only the kills that the store knows of are undone; one that is taken meanwhile stands.

    Raises:
        NotFoundError: there is no such route.
        ConflictError: the route is not killed.
        KilledError: all routes are killed; that is undone first.
        RequestError: the reason or the actor is empty or too long.
    """
    reason, actor = said("reason", reason), said("actor", actor)
    with store.transaction() as tx:
        rollout = locked_rollout(tx, route)
        known = orders_about(tx, route)
        if known.standing(ALL):
            remedy = "Undo that first: canary unkill --all --reason WHY."
            raise KilledError("all routes are killed", where=f"rollouts/{route}", remedy=remedy)
        above = (tx.flags.get(route) or Flag.initial(route)).kill_epoch
        order = known.unkill(route, reason, actor, now, secrets.token_hex(16), above=above)
        after = _revive(tx, rollout, order, reason, actor, now)
        tx.commit()
    return after


def unkill_all(store: Store, reason: str, actor: str, now: float) -> list[Rollout]:
    """Undo the kill of all routes: each that it killed starts again in shadow; one that was killed for itself stays killed.

    Raises:
        ConflictError: there is no kill of all routes.
        RequestError: the reason or the actor is empty or too long.
    """
    reason, actor = said("reason", reason), said("actor", actor)
    with store.transaction() as tx:
        rollouts = _locked(tx, ALL)
        known = orders_about(tx, ALL)
        above = tx.flags.snapshot(now).kill_epoch
        order = known.unkill(ALL, reason, actor, now, secrets.token_hex(16), above=above)
        if order is None:
            raise ConflictError("there is no kill of all routes", where="kill", remedy="Nothing to undo.")
        tx.kills.add(order)
        revived = [_revive(tx, r, order, reason, actor, now) for r in rollouts if _killed_by(tx, r, order.undoes)]
        body = {"sentence": reason, "order": order.to_dict(), "routes": [rollout.route for rollout in revived]}
        tx.audit.append(ALL, order.act.value, actor, body, now)
        tx.commit()
    return revived


def orders_about(tx: Transaction, route: str) -> Kills:
    """The settled orders about one route, those about all routes included."""
    return Kills.of(tx.kills.about([route] if route in (ALL, DRILL) else [route, ALL]))


def manual_kill(tx: Transaction, route: str) -> str | None:
    """Why a settled order kills the route now; None where none does. For `decide`."""
    order = orders_about(tx, route).over(route)
    return None if order is None else order.reason


def said(field: str, text: str) -> str:
    """A person's reason or name, without the blanks around it.

    Raises:
        RequestError: it is empty or too long.
    """
    trimmed = text.strip()
    if not trimmed or len(trimmed) > MAX_REASON:
        raise RequestError(
            f"`{field}` must be 1 to {MAX_REASON} characters", where=f"/{field}", remedy=f"Say the {field} in a sentence."
        )
    return trimmed


def _locked(tx: Transaction, scope: str) -> list[Rollout]:
    """The rollouts of a scope under their row locks, in one order for everybody."""
    if scope == DRILL:
        return []
    routes = sorted(r.route for r in tx.rollouts.list()) if scope == ALL else [scope]
    found = [tx.rollouts.get(route, lock=True) for route in routes]
    return [rollout for rollout in found if rollout is not None]


def _switch_off(tx: Transaction, rollout: Rollout, order: KillOrder, now: float) -> Flag:
    """One route's rollout, flag and audit event; a ramp that an evidence kill began ends here: a person's kill is immediate."""
    before = tx.flags.get(rollout.route) or Flag.initial(rollout.route)
    epoch = max(order.epoch, before.kill_epoch + 1)
    if before.killed:
        flag = replace(before, weight=0, kill_epoch=epoch)
    else:
        flag = before.switched(True, reason=order.sentence, epoch=epoch, kill_id=order.order_id, at=order.at)
    off = replace(rollout, killed=True, ramp_weight=0, ramp_start=0.0, ramp_end=0.0, reason=flag.kill_reason)
    if off != rollout:
        off = replace(off, version=rollout.version + 1)
        tx.rollouts.put(off)
    tx.flags.put(flag)
    body: dict[str, object] = {
        "sentence": order.sentence,
        "reason": order.reason,
        "state": rollout.state.value,
        "stage": rollout.stage,
        "weight": before.weight,
        "before": facts_of(rollout),
        "after": facts_of(off),
        "version": off.version,
        "order": order.to_dict(),
    }
    tx.audit.append(rollout.route, "kill", order.actor, {**body, **grounds(tx, rollout, now)}, now)
    _tell(tx, rollout, body, now)
    return flag


def _tell(tx: Transaction, rollout: Rollout, body: dict[str, object], now: float) -> None:
    """Put the kill into the outbox; one whose policy is lost or broken is a kill all the same."""
    try:
        policy = pinned_policy(tx, rollout)
    except CanaryError:
        return
    tell(tx, policy, "kill", {**body, "reason": "manual_kill", "killed": True, "weight": 0}, now)


def _revive(tx: Transaction, rollout: Rollout, order: KillOrder | None, reason: str, actor: str, now: float) -> Rollout:
    """Shadow and a new attempt; the flag's kill epoch rises above the kill's, so that no older snapshot brings it back."""
    flag = tx.flags.get(rollout.route)
    killed = rollout.killed or (flag is not None and flag.killed) or order is not None
    stepped = stepped_unkill(replace(rollout, killed=killed), pinned_policy(tx, rollout), now, reason=reason)
    if order is not None and order.scope != ALL:
        tx.kills.add(order)
    written = publish(tx, rollout, stepped, actor=actor, now=now, revive=True)
    if order is not None and written.kill_epoch < order.epoch:
        tx.flags.put(replace(written, kill_epoch=order.epoch))
    return stepped.rollout


def _killed_by(tx: Transaction, rollout: Rollout, kills: Sequence[str]) -> bool:
    """Whether the route is off only because of these kills."""
    flag = tx.flags.get(rollout.route)
    own = orders_about(tx, rollout.route).standing(rollout.route)
    return flag is not None and flag.killed and flag.kill_id in kills and not own
