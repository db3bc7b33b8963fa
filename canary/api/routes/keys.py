"""API keys: who has one, and making, replacing and ending them. A secret is in the answer that made it and nowhere else."""

from __future__ import annotations

from fastapi import APIRouter, Request

from canary.api.deps import Api, actor_of, page, place_of
from canary.api.schemas import PAGE, WRITING, Actor, Cursor, KeyId, KeyOrder, Limit, Rotation, problems
from canary.domain.access import Key
from canary.flow.tools import keys
from canary.flow.tools.keys import NewKey, described


def router(api: Api) -> APIRouter:
    """Keys, for admins."""
    made = APIRouter(prefix="/api/v1/keys", tags=["keys"])

    def answer(new: NewKey) -> dict[str, object]:
        api.ring.refresh()
        return {**described(new.key, api.clock()), "secret": new.secret}

    @made.get("", responses=problems())
    def listed(limit: Limit = PAGE, cursor: Cursor = None) -> dict[str, object]:
        """Every key, by id; digests and secrets are not shown."""
        after = place_of(cursor, "keys", str)
        found = sorted(keys.list_keys(api.store), key=_id)
        shown, following = page([k for k in found if after is None or k.key_id > after], limit, "keys", _id)
        return {"keys": [described(key, api.clock()) for key in shown], "next": following}

    @made.post("", status_code=201, responses=problems(*WRITING))
    def create(order: KeyOrder, request: Request) -> dict[str, object]:
        """Make a key; its `secret` is shown this once."""
        actor = actor_of(request, order.actor)
        now, role = api.clock(), order.role
        return answer(
            keys.create_key(api.store, order.owner, role, actor, now, scopes=order.scopes, routes=order.routes, days=order.days)
        )

    @made.post("/{key_id}/rotate", status_code=201, responses=problems(*WRITING))
    def rotate(key_id: KeyId, order: Rotation, request: Request) -> dict[str, object]:
        """Make a key with the same rights; the old one still opens for a while."""
        actor = actor_of(request, order.actor)
        return answer(keys.rotate_key(api.store, key_id, actor, api.clock(), grace_seconds=order.grace_seconds))

    @made.delete("/{key_id}", responses=problems(*WRITING))
    def revoke(key_id: KeyId, order: Actor, request: Request) -> dict[str, object]:
        """End a key at once; a second time changes nothing."""
        ended = keys.revoke_key(api.store, key_id, actor_of(request, order.actor), api.clock())
        api.ring.refresh()
        return described(ended, api.clock())

    return made


def _id(key: Key) -> str:
    return key.key_id
