"""Trying again over the API: an operator waits for the cool-down, and only who may approve ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.access import Role
from canary.domain.rollout import State
from canary.inmemory import InMemoryStore
from tests.api.keyed import bearer, client, key_for
from tests.api.served import NOW, add_route

PATH = "/api/v1/rollouts/math/retry"


@pytest.fixture
def store() -> InMemoryStore:
    """One route that was rolled back a moment ago."""
    made = InMemoryStore()
    add_route(made, "math")
    with made.transaction() as tx:
        found = tx.rollouts.get("math")
        assert found is not None
        back = {"state": State.ROLLED_BACK, "rollbacks": 1, "entered_at": NOW, "cool_until": NOW + 9_999}
        tx.rollouts.put(replace(found, version=found.version + 1, **back))  # type: ignore[arg-type]
        tx.commit()
    return made


def test_only_who_may_approve_ends_a_cool_down(store: InMemoryStore) -> None:
    """A3.18: a clear retry command; the operator's own retry waits."""
    operator, approver = (key_for(store, role, role) for role in (Role.OPERATOR, Role.APPROVER))
    with client(store) as caller:
        etag = caller.get("/api/v1/rollouts/math", headers=bearer(operator)).headers["etag"]
        head = {"If-Match": etag}
        body = {"reason": "the load test was ours", "now": True}
        refused = caller.post(PATH, json=body, headers={**head, **bearer(operator)})
        assert (refused.status_code, refused.json()["where"]) == (403, "/now")
        waits = caller.post(PATH, json={"reason": "again"}, headers={**head, **bearer(approver)})
        assert (waits.status_code, waits.json()["code"]) == (409, "conflict")
        assert "cool-down" in waits.json()["detail"]
        loose = caller.post(PATH, json={**body, "now": "yes"}, headers={**head, **bearer(approver)})
        assert loose.status_code == 400
        done = caller.post(PATH, json=body, headers={**head, **bearer(approver)})
        assert (done.status_code, done.json()["state"], done.json()["attempt"]) == (200, "shadow", 2)
        other = caller.post(
            "/api/v1/rollouts/math/pause", json=body, headers={"If-Match": done.headers["etag"], **bearer(approver)}
        )
        assert other.status_code == 400, "no other order takes `now`"
    with store.transaction() as tx:
        newest = tx.audit.list("math")[0]
    assert (newest["kind"], newest["actor"]) == ("retry", "approver")
