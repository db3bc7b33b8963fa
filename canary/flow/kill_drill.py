"""A kill drill: the drill's flag is killed and revived on the path of every kill, and what the clients say of it is recorded.

It touches no route. What is measured is when a client's word arrived, so a figure is never better than the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from canary.domain.kills import DRILL, KillOrder
from canary.domain.propagation import Propagation
from canary.flow.ports import Store

WAIT_SECONDS = 10.0
PAUSE_SECONDS = 0.05


class Switch(Protocol):
    """Where kills are taken, and where clients say what they hold."""

    def drill_on(self, actor: str) -> KillOrder:
        """Kill the drill's flag."""

    def drill_off(self, actor: str) -> None:
        """Revive it."""

    def connected(self) -> frozenset[str]:
        """Clients of every replica that were heard of lately."""

    def reached(self, order: KillOrder) -> Mapping[str, float]:
        """Seconds from the order to the word of each client that holds it."""


def drill(
    store: Store,
    switch: Switch,
    actor: str,
    clock: Callable[[], float],
    pause: Callable[[float], object],
    *,
    wait_seconds: float = WAIT_SECONDS,
) -> Propagation:
    """Run one drill and record it as an audit event of the drill's flag.

    Args:
        clock: seconds since the epoch.
        pause: sleeps for so many seconds.
        wait_seconds: how long clients may take; those that take longer are missed.

    Raises:
        UnreachableError: the store does not answer, so that the drill took place and is not recorded.
    """
    connected = switch.connected()
    began = clock()
    order = switch.drill_on(actor)
    try:
        reached = switch.reached(order)
        for _ in range(int(wait_seconds / PAUSE_SECONDS)):
            if connected <= set(reached):
                break
            pause(PAUSE_SECONDS)
            reached = switch.reached(order)
    finally:
        switch.drill_off(actor)
    found = Propagation.of(connected, reached)
    body = {"sentence": _sentence(found), "order": order.to_dict(), "took_seconds": clock() - began, **found.to_dict()}
    with store.transaction() as tx:
        tx.audit.append(DRILL, "kill_drill", actor, body, clock())
        tx.commit()
    return found


def _sentence(found: Propagation) -> str:
    if not found.connected:
        return "A kill drill found no connected client."
    p99 = found.quantile(0.99)
    in_time = f"; 99 % within {p99:.3f} s" if p99 is not None else ""
    return f"A kill drill reached {found.acknowledged} of {found.connected} clients{in_time}."
