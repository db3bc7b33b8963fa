"""API keys: made, rotated and revoked, each with an audit event. A key's secret is returned once and never stored."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from canary.domain.access import MAY, Action, Key, Role
from canary.domain.errors import NotFoundError, RequestError
from canary.flow.ports import Store, Transaction

PREFIX = "cnry"
SHAPE = re.compile(r"cnry_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
LONGEST_OWNER = 200
MOST_ROUTES = 200
LONGEST_ROUTE = 200
MAX_DAYS = 3_650.0
DAY = 86_400.0
AUDIT_ROUTE = "*"  # audit events about no one route


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made.

    Args:
        secret: what its holder sends; it cannot be had again.
    """

    key: Key
    secret: str


def digest_of(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def key_id_of(secret: str) -> str | None:
    """The public part of a secret; None where it has not the shape of one."""
    found = SHAPE.fullmatch(secret)
    return found and found.group(1)


def make_key(
    owner: str, role: Role, now: float, *, scopes: Sequence[Action] = (), routes: Sequence[str] = (), days: float | None = None
) -> NewKey:
    """A key that is not stored yet.

    Args:
        days: until it expires; None for never.

    Raises:
        RequestError: names the field.
    """
    said = " ".join(owner.split())
    if not said or len(said) > LONGEST_OWNER:
        raise _wrong("owner", f"must be 1 to {LONGEST_OWNER} characters", "Name the person or service that holds the key.")
    beyond = sorted(set(scopes) - MAY[role])
    if beyond:
        raise _wrong("scopes", f"{beyond[0]} is more than the role {role} may", "Choose another role, or leave it out.")
    if len(routes) > MOST_ROUTES or not all(0 < len(r) <= LONGEST_ROUTE for r in routes):
        raise _wrong("routes", f"must be at most {MOST_ROUTES} names of routes", "Leave it empty for all routes.")
    if days is not None and not 0 < days <= MAX_DAYS:
        raise _wrong("days", f"must be above 0 and at most {MAX_DAYS:.0f}", "Leave it out for a key that does not expire.")
    key_id = secrets.token_hex(6)
    secret = f"{PREFIX}_{key_id}_{secrets.token_urlsafe(32)}"
    chosen = (tuple(sorted(set(scopes))), tuple(sorted(set(routes))))
    return NewKey(Key(key_id, digest_of(secret), said, role, *chosen, now, None if days is None else now + days * DAY), secret)


def create_key(
    store: Store,
    owner: str,
    role: Role,
    actor: str,
    now: float,
    *,
    scopes: Sequence[Action] = (),
    routes: Sequence[str] = (),
    days: float | None = None,
) -> NewKey:
    """Make and store a key; see `make_key`."""
    made = make_key(owner, role, now, scopes=scopes, routes=routes, days=days)
    with store.transaction() as tx:
        _write(tx, made.key, "key_created", actor, now)
        tx.commit()
    return made


def rotate_key(store: Store, key_id: str, actor: str, now: float, *, grace_seconds: float = DAY) -> NewKey:
    """Make a key with the same rights; the old one ends after `grace_seconds`, or when it would have ended anyway.

    A key that was made for some days gets as many again.

    Raises:
        NotFoundError: there is no such key.
        RequestError: it is revoked or expired, or the grace is negative or over ten years.
    """
    if not 0 <= grace_seconds <= MAX_DAYS * DAY:
        raise _wrong("grace_seconds", "must be 0 to ten years", "Leave it out for one day.")
    with store.transaction() as tx:
        old = _known(tx, key_id)
        if not old.active(now):
            raise _wrong("key_id", f"key {key_id} is revoked or expired", "Create a new one.")
        days = None if old.expires_at is None else (old.expires_at - old.created_at) / DAY
        made = make_key(old.owner, old.role, now, scopes=old.scopes, routes=old.routes, days=days)
        ends = now + grace_seconds
        _write(tx, made.key, "key_created", actor, now, rotated_from=key_id)
        _write(
            tx, replace(old, expires_at=min(ends, old.expires_at or ends)), "key_rotated", actor, now, rotated_to=made.key.key_id
        )
        tx.commit()
    return made


def revoke_key(store: Store, key_id: str, actor: str, now: float) -> Key:
    """End a key at once; a second time changes nothing.

    Raises:
        NotFoundError: there is no such key.
    """
    with store.transaction() as tx:
        old = _known(tx, key_id)
        if old.revoked_at is not None:
            return old
        ended = replace(old, revoked_at=now)
        _write(tx, ended, "key_revoked", actor, now)
        tx.commit()
    return ended


def list_keys(store: Store) -> list[Key]:
    """Every key, the newest first."""
    with store.transaction() as tx:
        return tx.keys.list()


def described(key: Key, now: float) -> dict[str, object]:
    """A key as people may see it: no digest."""
    return {
        "key_id": key.key_id,
        "prefix": f"{PREFIX}_{key.key_id}",
        "owner": key.owner,
        "role": key.role.value,
        "scopes": [s.value for s in key.scopes],
        "routes": list(key.routes),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "active": key.active(now),
    }


def _known(tx: Transaction, key_id: str) -> Key:
    found = tx.keys.get(key_id, lock=True)
    if found is None:
        raise NotFoundError("there is no such key", where="/key_id", remedy="List them: canary keys list.")
    return found


def _write(tx: Transaction, key: Key, kind: str, actor: str, now: float, **more: object) -> None:
    tx.keys.put(key)
    tx.audit.append(AUDIT_ROUTE, kind, actor, {**described(key, now), **more}, now)


def _wrong(field: str, detail: str, remedy: str) -> RequestError:
    return RequestError(f"{field} {detail}", where=f"/{field}", remedy=remedy)
