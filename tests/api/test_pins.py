"""Pins over HTTP, and that every way of reading a flag says the same of a pinned unit, under a kill too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from canary.domain.access import Role
from canary.domain.evaluation import evaluate
from canary.domain.flag import Snapshot, bucket
from canary.domain.pins import MOST_PINS, Pin
from canary.domain.rollout import State
from canary.inmemory import InMemoryStore
from tests.api.keyed import bearer, client, key_for
from tests.api.served import NOW, add_route, set_weight

BASE = "/api/v1/routes/math/pins"
ORDER = {"variant": "candidate", "reason": "a friend", "actor": "ada"}
NEW = {"If-None-Match": "*"}


@pytest.fixture
def store() -> InMemoryStore:
    made = InMemoryStore()
    for route in ("math", "creative"):
        add_route(made, route)
    with made.transaction() as tx:
        rollout = tx.rollouts.get("math")
        assert rollout is not None
        tx.rollouts.put(replace(rollout, state=State.CANARY, stage=1, version=rollout.version + 1))
        tx.commit()
    set_weight(made, "math", 500)
    return made


@pytest.fixture
def caller(store: InMemoryStore) -> Iterator[TestClient]:
    with client(store) as made:
        yield made


def seen(caller: TestClient, unit: str) -> list[dict[str, Any]]:
    """What single, bulk and in-process evaluation say of one unit."""
    context = {"context": {"targetingKey": unit}}
    single = caller.post("/ofrep/v1/evaluate/flags/specdec.math", json=context).json()
    bulk = caller.post("/ofrep/v1/evaluate/flags", json=context).json()["flags"]
    snapshot = Snapshot.from_json(caller.get("/api/v1/flags/snapshot").text, NOW)
    ours = evaluate(snapshot, "specdec.math", unit)
    own = {name: getattr(ours, name) for name in ("key", "value", "reason", "variant", "metadata")}
    return [single, next(f for f in bulk if f["key"] == "specdec.math"), own]


def test_a_pin_is_made_read_replaced_and_taken_away(store: InMemoryStore, caller: TestClient) -> None:
    assert caller.get(BASE).json() == {"route": "math", "pins": [], "next": None}
    assert caller.put(f"{BASE}/tenant-1", json=ORDER).status_code == 428
    made = caller.put(f"{BASE}/tenant-1", json={**ORDER, "expires_seconds": 60.0}, headers=NEW)
    assert (made.status_code, made.json()["in_force"], made.json()["expires_at"]) == (200, True, "2023-11-14T22:15:20.000Z")
    assert caller.put(f"{BASE}/tenant-1", json=ORDER, headers=NEW).status_code == 412
    read = caller.get(f"{BASE}/tenant-1")
    assert (read.json(), read.headers["etag"]) == (made.json(), made.headers["etag"])
    other = {**ORDER, "variant": "baseline"}
    assert caller.put(f"{BASE}/tenant-1", json=other, headers={"If-Match": '"other"'}).status_code == 412
    changed = caller.put(f"{BASE}/tenant-1", json=other, headers={"If-Match": read.headers["etag"]})
    assert (changed.json()["variant"], changed.json()["expires_at"]) == ("baseline", None)
    gone = {"reason": "over", "actor": "ada"}
    assert caller.request("DELETE", f"{BASE}/tenant-1", json=gone).status_code == 428
    stale = {"If-Match": read.headers["etag"]}
    assert caller.request("DELETE", f"{BASE}/tenant-1", json=gone, headers=stale).status_code == 412
    fresh = {"If-Match": changed.headers["etag"]}
    assert caller.request("DELETE", f"{BASE}/tenant-1", json=gone, headers=fresh).json()["pinned"] is False
    assert caller.get(f"{BASE}/tenant-1").status_code == 404
    assert caller.request("DELETE", f"{BASE}/tenant-1", json=gone, headers={"If-Match": "*"}).status_code == 404
    with store.transaction() as tx:
        assert [e["kind"] for e in tx.audit.list("math", 3)] == ["unpin", "pin", "pin"]


def test_every_way_of_reading_says_the_same_of_a_pinned_unit_and_a_kill_beats_it(caller: TestClient) -> None:
    """A5.13: value, variant, reason and metadata of a pinned unit, single, in bulk and in process; then killed."""
    outside = next(f"u{n}" for n in range(100) if bucket("specdec.math", f"u{n}") >= 500)
    inside = next(f"u{n}" for n in range(1_000) if bucket("specdec.math", f"u{n}") < 500)
    assert [(s["value"], s["reason"]) for s in (*seen(caller, outside), *seen(caller, inside))] == [
        *[(False, "SPLIT")] * 3,
        *[(True, "SPLIT")] * 3,
    ]
    for unit, variant in ((outside, "candidate"), (inside, "baseline")):
        assert caller.put(f"{BASE}/{unit}", json={**ORDER, "variant": variant}, headers=NEW).status_code == 200
        first, *others = seen(caller, unit)
        assert others == [first, first]
        assert (first["variant"], first["value"], first["reason"]) == (variant, variant == "candidate", "TARGETING_MATCH")
        assert first["metadata"]["rule"] == "pin"
    assert caller.post("/api/v1/routes/math/kill", json={"reason": "fire", "actor": "ada"}).status_code == 200
    for unit in (outside, inside):
        first, *others = seen(caller, unit)
        assert others == [first, first]
        assert (first["value"], first["reason"]) == (False, "DISABLED")
    killed = caller.put(f"{BASE}/another", json=ORDER, headers=NEW)
    assert (killed.status_code, killed.json()["code"]) == (409, "killed")


def test_nobody_is_pinned_to_a_candidate_that_is_not_certified_yet(caller: TestClient) -> None:
    refused = caller.put("/api/v1/routes/creative/pins/u", json=ORDER, headers=NEW)
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "shadow" in refused.json()["detail"]
    allowed = caller.put("/api/v1/routes/creative/pins/u", json={**ORDER, "variant": "baseline"}, headers=NEW)
    assert allowed.status_code == 200


def test_a_route_has_so_many_pins_by_pages(store: InMemoryStore, caller: TestClient) -> None:
    with store.transaction() as tx:
        for n in range(MOST_PINS):
            tx.pins.put(Pin("math", f"u{n:03}", "baseline", "epoch-1", "why", "ada", NOW))
        tx.commit()
    full = caller.put(f"{BASE}/one-more", json=ORDER, headers=NEW)
    assert (full.status_code, full.json()["detail"]) == (409, f"the route has {MOST_PINS} pins, and every snapshot carries them")
    assert caller.put(f"{BASE}/u007", json=ORDER, headers={"If-Match": "*"}).status_code == 200, "one of them may change"
    found, cursor = [], None
    while found == [] or cursor is not None:
        answer = caller.get(BASE, params={"limit": 33} | ({"cursor": cursor} if cursor else {})).json()
        found += [pin["unit"] for pin in answer["pins"]]
        cursor = answer["next"]
    assert found == [f"u{n:03}" for n in range(MOST_PINS)]


@pytest.mark.parametrize(
    "body",
    [
        {**ORDER, "variant": "speculative"},
        {**ORDER, "reason": " "},
        {**ORDER, "expires_seconds": 0},
        {**ORDER, "expires_seconds": "60"},
        {**ORDER, "weight": 5},
        {"variant": "baseline", "actor": "ada"},
    ],
)
def test_a_strict_model_refuses(caller: TestClient, body: dict[str, object]) -> None:
    assert caller.put(f"{BASE}/u", json=body, headers=NEW).status_code == 400
    assert caller.get(BASE).json()["pins"] == []


def test_a_viewer_reads_pins_and_a_limited_operator_pins_its_own_route_only(store: InMemoryStore) -> None:
    viewer, limited = key_for(store, Role.VIEWER), key_for(store, Role.OPERATOR, "grace", routes=("math",))
    order = {"variant": "baseline", "reason": "why"}
    with client(store) as caller:
        assert caller.get(BASE, headers=bearer(viewer)).status_code == 200
        assert caller.put(f"{BASE}/u", json=order, headers={**NEW, **bearer(viewer)}).status_code == 403
        made = caller.put(f"{BASE}/u", json=order, headers={**NEW, **bearer(limited)})
        assert (made.status_code, made.json()["actor"]) == (200, "grace")
        elsewhere = caller.put("/api/v1/routes/creative/pins/u", json=order, headers={**NEW, **bearer(limited)})
        assert elsewhere.status_code == 403
