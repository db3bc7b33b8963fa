"""What a key for named routes sees of the flags: its own, signed as they are sent, and the drill's; and how old they are."""

from __future__ import annotations

import json

import pytest

from canary.api.flags import FlagCache
from canary.client.fetch import age_of
from canary.domain.access import Role
from canary.domain.kills import DRILL, Act, KillOrder
from canary.flow.tools.signed import decode_public, verified
from canary.inmemory import InMemoryStore
from tests.api.keyed import application, bearer, client, key_for
from tests.api.served import NOW, add_route


@pytest.fixture
def store() -> InMemoryStore:
    made = InMemoryStore()
    for route in ("creative", "math", "rag"):
        add_route(made, route)
    return made


def test_a_limited_key_gets_its_own_routes_signed_as_they_are_sent(store: InMemoryStore) -> None:
    """A3.27: the signature is over the payload that was sent, whoever asked."""
    limited, all_routes = key_for(store, Role.VIEWER, routes=("math",)), key_for(store, Role.VIEWER)
    with client(store) as caller:
        public = decode_public(caller.get("/api/v1/flags/key").json()["public_key"])
        whole = verified(caller.get("/api/v1/flags/snapshot.signed", headers=bearer(all_routes)).text, public)
        seen = verified(caller.get("/api/v1/flags/snapshot.signed", headers=bearer(limited)).text, public)
        assert set(whole.flags) == {"creative", "math", "rag"}
        assert seen.flags == {"math": whole.flags["math"]}
        assert seen.version == whole.version
        plain = caller.get("/api/v1/flags/snapshot", headers=bearer(limited))
        assert set(plain.json()["flags"]) == {"math"}
        same = {"If-None-Match": plain.headers["etag"], **bearer(limited)}
        assert caller.get("/api/v1/flags/snapshot", headers=same).status_code == 304
        assert caller.get("/api/v1/flags/snapshot", headers={**same, **bearer(all_routes)}).status_code == 200


def test_a_limited_key_s_client_can_answer_a_kill_drill(store: InMemoryStore) -> None:
    limited = key_for(store, Role.VIEWER, routes=("math",))
    with client(store) as caller:
        drilled = caller.app.state.api.kills  # type: ignore[attr-defined]
        drilled.board.join([KillOrder(7, "drill-1", Act.KILL, DRILL, "a drill", "scheduler", NOW)])
        found = caller.get("/api/v1/flags/snapshot", headers=bearer(limited)).json()["flags"]
    assert set(found) == {"math", DRILL}
    assert found[DRILL]["kill_epoch"] == 7


@pytest.mark.parametrize(("age", "whole", "exact"), [(0.0, "0", "0.000"), (0.999, "0", "0.999"), (61.25, "61", "61.250")])
def test_age_has_whole_seconds_and_clients_judge_by_the_exact_one(
    store: InMemoryStore, monkeypatch: pytest.MonkeyPatch, age: float, whole: str, exact: str
) -> None:
    monkeypatch.setattr(FlagCache, "age_seconds", property(lambda self: age))
    with client(store) as caller:
        answer = caller.get("/api/v1/flags/snapshot")
        assert (answer.headers["age"], answer.headers["canary-age"]) == (whole, exact)
        assert age_of(answer.headers) == age  # type: ignore[arg-type]
    assert age_of({"Age": "3"}) == 3.0, "a cache between knows whole seconds only"  # type: ignore[arg-type]


def test_a_flag_is_stale_by_the_exact_age(store: InMemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.transaction() as tx:
        flag = tx.flags.get("math")
        assert flag is not None
        tx.flags.put(type(flag)("math", weight=500, salt=flag.salt, max_stale=0.5))
        tx.commit()
    answers = []
    for age in (0.5, 0.501):
        monkeypatch.setattr(FlagCache, "age_seconds", property(lambda self, age=age: age))
        with client(store) as caller:
            said = caller.post("/ofrep/v1/evaluate/flags/specdec.math", json={"context": {"targetingKey": "u"}}).json()
            answers.append((said["reason"], said["metadata"].get("stale", False)))
    assert answers == [("SPLIT", False), ("UNKNOWN", True)]


def test_resolving_a_flag_asks_no_store_whatever_headers_come_with_it(store: InMemoryStore) -> None:
    """A5.18: an Idempotency-Key is for writes; here it is neither kept nor judged."""
    app = application(store)
    body = json.dumps({"context": {"targetingKey": "u"}})
    with client(store) as caller:
        for key in ("one", "", "ü" * 3):
            headers = {"Idempotency-Key": key.encode()}
            for path in ("/ofrep/v1/evaluate/flags", "/ofrep/v1/evaluate/flags/specdec.math"):
                assert caller.post(path, content=body, headers=headers).status_code == 200  # type: ignore[arg-type]
    with store.transaction() as tx:
        assert tx.answers.expire(float("inf")) == 0
    assert "Idempotency-Key" not in json.dumps(app.openapi()["paths"]["/ofrep/v1/evaluate/flags"])
