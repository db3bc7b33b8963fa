"""Leases while a batch runs: keeping them, and giving back those that will not be used. Who gets one is the claim's business."""

from __future__ import annotations

from collections.abc import Sequence

from canary.domain.errors import UnreachableError
from canary.domain.policy import Policy
from canary.flow.ports import Claim, Observer, Store


class LeasesLost(Exception):
    """Somebody else holds every lease of the batch, so nothing of it can be stored any more."""


def give_back(store: Store, claims: Sequence[Claim]) -> None:
    """Release leases that will not be used, so that nobody waits for them to run out."""
    with store.transaction() as tx:
        tx.claims.release([c.token for c in claims])
        tx.commit()


def renew(store: Store, policy: Policy, claims: Sequence[Claim], now: float, observer: Observer) -> None:
    """Extend a batch's leases. A database that is away for a moment is no reason to throw the batch away.

    Raises:
        LeasesLost: none of them is ours any more.
    """
    try:
        with store.transaction() as tx:
            left = tx.claims.heartbeat([c.token for c in claims], now, policy.shadow.lease_seconds)
            tx.commit()
    except UnreachableError as error:
        observer.note("heartbeat_failed", route=policy.route, code=error.code, detail=str(error))
        return
    if left == 0:
        raise LeasesLost
