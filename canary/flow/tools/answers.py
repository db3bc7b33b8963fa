"""What a write with an Idempotency-Key was answered, kept for a day; the caller runs the request itself."""

from __future__ import annotations

from canary.domain.errors import ConflictError, ReusedKeyError
from canary.flow.ports import KeptAnswer, Store

KEEP_SECONDS = 86_400.0
STALLED_SECONDS = 60.0  # after which a request that was never answered, as by a crash, may run again


def begin(store: Store, caller: str, key: str, fingerprint: str, now: float) -> KeptAnswer | None:
    """Take the key for one request.

    Args:
        caller: whose key it is; two callers' keys never meet.
        fingerprint: of the whole request.
        now: seconds since the epoch.

    Returns:
        None where the request is to run; the first one's answer otherwise.

    Raises:
        ReusedKeyError: the key came with another request.
        ConflictError: the first request is still running.
    """
    with store.transaction() as tx:
        tx.answers.expire(now - KEEP_SECONDS)
        kept = tx.answers.begin(caller, key, fingerprint, now, stalled_before=now - STALLED_SECONDS)
        tx.commit()
    if kept is None:
        return None
    if kept.fingerprint != fingerprint:
        raise ReusedKeyError("the key was sent with another request", where="Idempotency-Key", remedy="Send a new key.")
    if kept.status is None:
        raise ConflictError("the first request with this key is still running", where="Idempotency-Key", remedy="Ask again soon.")
    return kept


def finish(store: Store, caller: str, key: str, status: int, headers: str, body: bytes) -> None:
    """Keep the answer; that of a failed service is none, so that the request may run again."""
    with store.transaction() as tx:
        if status >= 500:
            tx.answers.forget(caller, key)
        else:
            tx.answers.finish(caller, key, status, headers, body)
        tx.commit()


def forget(store: Store, caller: str, key: str) -> None:
    """Let the key be used again."""
    with store.transaction() as tx:
        tx.answers.forget(caller, key)
        tx.commit()
