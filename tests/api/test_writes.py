"""Writes over HTTP: what they expect, repeated ones, pages, policies, observations, and values that are none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from canary.domain.access import Action, Role
from canary.domain.rollout import State
from canary.flow.tools import answers
from canary.flow.tools.policy_files import dump
from canary.inmemory import InMemoryStore
from tests.api.keyed import bearer, client, key_for
from tests.api.served import NOW, add_route, decide_now, policy_of
from tests.store import samples

HELD = {"reason": "looked at it", "actor": "ada"}


@pytest.fixture
def store() -> InMemoryStore:
    made = InMemoryStore()
    for route in ("creative", "math", "rag"):
        add_route(made, route)
    return made


@pytest.fixture
def caller(store: InMemoryStore) -> Iterator[TestClient]:
    with client(store) as made:
        yield made


def hold(store: InMemoryStore, route: str = "math") -> None:
    with store.transaction() as tx:
        rollout = tx.rollouts.get(route)
        assert rollout is not None
        tx.rollouts.put(replace(rollout, state=State.HELD, version=rollout.version + 1))
        tx.commit()


def test_an_order_says_which_state_it_is_about(store: InMemoryStore, caller: TestClient) -> None:
    stale = caller.get("/api/v1/rollouts/math").headers["etag"]
    hold(store)
    path = "/api/v1/rollouts/math/resume"
    assert caller.post(path, json=HELD).status_code == 428
    refused = caller.post(path, json=HELD, headers={"If-Match": stale})
    assert (refused.status_code, refused.json()["code"]) == (412, "precondition_failed")
    with store.transaction() as tx:
        assert tx.rollouts.get("math").state is State.HELD  # type: ignore[union-attr]
    fresh = caller.get("/api/v1/routes/math").headers["etag"]
    done = caller.post(path, json=HELD, headers={"If-Match": f'"other", {fresh}'})
    assert (done.status_code, done.json()["state"]) == (200, "shadow")
    assert done.headers["etag"] == caller.get("/api/v1/rollouts/math").headers["etag"] != fresh


def test_the_tag_stays_while_only_clocks_move(store: InMemoryStore, caller: TestClient) -> None:
    before = caller.get("/api/v1/rollouts/math").headers["etag"]
    with store.transaction() as tx:
        rollout = tx.rollouts.get("math")
        assert rollout is not None
        tx.rollouts.put(replace(rollout, baked_seconds=5.0, assessed_at=NOW, version=rollout.version + 1))
        tx.commit()
    assert caller.get("/api/v1/rollouts/math").headers["etag"] == before


def test_a_policy_is_put_over_the_one_that_was_seen(store: InMemoryStore, caller: TestClient) -> None:
    path, text = "/api/v1/policies/math", dump(policy_of("math", mirror_rate=0.5))
    seen = caller.get(path)
    body = {"text": text, "actor": "ada"}
    assert caller.put(path, json=body).status_code == 428
    assert caller.put(path, json=body, headers={"If-None-Match": "*"}).status_code == 412
    assert caller.put(path, json=body, headers={"If-Match": '"other"'}).status_code == 412
    assert caller.get(path).json() == seen.json(), "nothing was kept"
    wrong = caller.put("/api/v1/policies/rag", json=body, headers={"If-Match": "*"})
    assert (wrong.status_code, wrong.json()["where"]) == (422, "route")
    broken = caller.put(path, json={**body, "text": text + "surprise: 1\n"}, headers={"If-Match": "*"})
    assert (broken.status_code, "surprise" in broken.json()["detail"]) == (422, True)


def test_a_new_route_s_policy_needs_no_policy_before(caller: TestClient) -> None:
    path, body = "/api/v1/policies/new", {"text": dump(policy_of("new")), "actor": "ada"}
    assert caller.put(path, json=body, headers={"If-Match": "*"}).status_code == 412
    made = caller.put(path, json=body, headers={"If-None-Match": "*"})
    assert (made.status_code, made.json()["rollout"]["state"]) == (200, "shadow")
    assert made.headers["etag"] == caller.get(path).headers["etag"]
    assert caller.put(path, json=body, headers={"If-None-Match": "*"}).status_code == 412


def test_a_repeated_write_is_answered_as_the_first_one_was(store: InMemoryStore, caller: TestClient) -> None:
    headers, body = {"Idempotency-Key": "one"}, {"owner": "ada", "role": "admin", "actor": "root"}
    first = caller.post("/api/v1/keys", json=body, headers=headers)
    assert first.status_code == 201
    both = headers | bearer(first.json()["secret"])
    # From now on there are keys, and a caller's Idempotency-Keys are its own.
    other = caller.post("/api/v1/keys", json={"owner": "b", "role": "viewer"}, headers=both)
    again = caller.post("/api/v1/keys", json={"owner": "b", "role": "viewer"}, headers=both)
    assert (other.status_code, again.status_code, again.json()) == (201, 201, other.json())
    assert again.headers["idempotent-replayed"] == "true"
    assert len(caller.get("/api/v1/keys", headers=both).json()["keys"]) == 2
    mixed = caller.post("/api/v1/keys", json={"owner": "c", "role": "viewer"}, headers=both)
    assert (mixed.status_code, mixed.json()["code"]) == (422, "reused_key")
    assert (
        caller.post("/api/v1/keys", json={"owner": "d", "role": "viewer"}, headers=both | {"Idempotency-Key": ""}).status_code
        == 400
    )


def test_a_write_that_still_runs_is_not_run_twice(store: InMemoryStore, caller: TestClient) -> None:
    """A conflict while the first request runs; its answer afterwards; and a crash is forgotten in time."""
    body = b"{}"
    assert answers.begin(store, "", "k", "print", NOW) is None
    with pytest.raises(Exception, match="still running"):
        answers.begin(store, "", "k", "print", NOW + 1)
    assert answers.begin(store, "another", "k", "print", NOW) is None
    assert answers.begin(store, "", "k", "print", NOW + 61) is None, "the first one was never answered"
    answers.finish(store, "", "k", 200, "{}", body)
    kept = answers.begin(store, "", "k", "print", NOW + 62)
    assert kept is not None
    assert (kept.status, kept.body) == (200, body)
    answers.finish(store, "", "k", 503, "{}", b"")
    assert answers.begin(store, "", "k", "other", NOW + 63) is None, "a failed service answered nothing"
    assert answers.begin(store, "", "k", "print", NOW + 63 + 86_401) is None, "kept for a day"


def test_two_at_once_with_one_key(store: InMemoryStore) -> None:
    """The second of two equal requests in flight is told so, over HTTP."""
    inside, leave = threading.Event(), threading.Event()

    class Slow:
        def transaction(self):  # type: ignore[no-untyped-def]
            if threading.current_thread().name.startswith("AnyIO"):
                inside.set()
                assert leave.wait(30)
            return store.transaction()

    with client(Slow()) as caller:  # type: ignore[arg-type]
        body, headers, found = {"owner": "ada", "role": "viewer", "actor": "root"}, {"Idempotency-Key": "one"}, []
        first = threading.Thread(target=lambda: found.append(caller.post("/api/v1/keys", json=body, headers=headers)))
        first.start()
        assert inside.wait(30)
        second = caller.post("/api/v1/keys", json=body, headers=headers)
        leave.set()
        first.join(30)
    assert (second.status_code, second.json()["code"]) == (409, "conflict")
    assert found[0].status_code == 201


def test_pages_are_stable_while_rows_are_added(store: InMemoryStore, caller: TestClient) -> None:
    first = caller.get("/api/v1/rollouts?limit=2").json()
    assert [row["route"] for row in first["rollouts"]] == ["creative", "math"]
    add_route(store, "aaa")
    rest = caller.get("/api/v1/rollouts", params={"limit": 2, "cursor": first["next"]}).json()
    assert ([row["route"] for row in rest["rollouts"]], rest["next"]) == (["rag"], None)
    assert caller.get("/api/v1/policies", params={"cursor": first["next"]}).status_code == 400
    for wrong in ("x", "", "W10", "bnVsbA", "é"):
        assert caller.get("/api/v1/rollouts", params={"cursor": wrong}).status_code == 400, wrong
    for limit in ("0", "201", "-1", "1.5", "NaN"):
        assert caller.get("/api/v1/rollouts", params={"limit": limit}).status_code == 400, limit


def test_the_audit_log_by_pages(store: InMemoryStore, caller: TestClient) -> None:
    """A3.27: every event once, the newest first, with its digest, however many come meanwhile."""
    for number in range(3):
        decide_now(store, "math", at=NOW + number)
    seen, cursor = [], None
    while True:
        page = caller.get("/api/v1/audit/math", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
        seen += page["events"]
        decide_now(store, "math", at=NOW + 10)
        cursor = page["next"]
        if cursor is None or len(seen) > 20:
            break
    ids = [event["id"] for event in seen]
    assert ids == sorted(set(ids), reverse=True)
    assert len(ids) == 4
    assert all(event["digest"] and "previous" in event for event in seen)
    assert caller.get("/api/v1/audit/math/chain").json()["ok"] is True
    assert caller.get("/api/v1/audit/math?kind=policy").json()["events"][0]["kind"] == "policy"


def test_a_decision_explains_itself_over_http(store: InMemoryStore, caller: TestClient) -> None:
    """A3.26: value, threshold, n, interval and a sentence, in JSON that holds no infinity."""
    decide_now(store, "math")
    for path in ("routes/math/evidence", "rollouts/math"):
        gate = json.loads(caller.get(f"/api/v1/{path}").text, parse_constant=pytest.fail)["last"]["gates"][0]
        assert (gate["value"], gate["threshold"], gate["n"], gate["low"], gate["high"]) == (1.5, 1.1, 40, 1.25, None)
        assert gate["sentence"]
    event = json.loads(caller.get("/api/v1/audit/math?kind=decision").text, parse_constant=pytest.fail)["events"][0]
    assert event["body"]["gates"][0]["threshold"] == 1.1


def observation(number: int, route: str = "math", **more: object) -> dict[str, object]:
    return {
        "route": route,
        "observation_id": f"r{number}",
        "arm": "candidate",
        "observed_at": NOW,
        "finish_reason": "stop",
        **more,
    }


def test_observations_come_as_one_as_many_and_as_lines(store: InMemoryStore, caller: TestClient) -> None:
    path = "/api/v1/observations"
    one = caller.post(path, json=observation(1))
    assert one.json() == {"new": 1, "repeat": 0, "refused": 0, "items": [{"state": "new"}]}
    many = caller.post(path, json=[observation(1), observation(2), observation(2), observation(3, "nowhere")]).json()
    assert [item["state"] for item in many["items"]] == ["repeat", "new", "repeat", "refused"]
    assert many["items"][3]["problem"]["code"] == "not_found"
    lines = "\n".join(json.dumps(observation(n)) for n in (2, 4)).encode() + b"\n\n"
    told = caller.post(path, content=lines, headers={"content-type": "application/x-ndjson; charset=utf-8"}).json()
    assert [item["state"] for item in told["items"]] == ["repeat", "new"]
    with store.transaction() as tx:
        assert [o.observation_id for _, o in tx.observations.after("math", 0, 10)] == ["r1", "r2", "r4"]
    assert caller.post(path, json=[]).json()["items"] == []


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"NaN", "application/json", 400),
        (json.dumps(observation(1)).encode().replace(b'"stop"', b'"stop", "ttft_seconds": NaN'), "application/json", 400),
        (json.dumps(observation(1)).encode().replace(b'"stop"', b'"stop", "ttft_seconds": Infinity'), "application/json", 400),
        (json.dumps(observation(1)).encode().replace(b'"stop"', b'"stop", "ttft_seconds": 1e999'), "application/json", 400),
        (json.dumps(observation(1, num_drafts=-1)).encode(), "application/json", 400),
        (json.dumps(observation(1, ttft_seconds=None, thumbs=2)).encode(), "application/json", 400),
        (json.dumps(observation(1, surprise=1)).encode(), "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"null", "application/json", 400),
        (b"[1, null, []]", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b"{}", "", 415),
        (json.dumps([observation(n) for n in range(1_001)]).encode(), "application/json", 400),
        (b" " * (1024 * 1024 + 1), "application/json", 413),
    ],
)
def test_values_that_are_none_are_refused(store: InMemoryStore, caller: TestClient, body: bytes, kind: str, status: int) -> None:
    """A3.4: NaN, infinities, negative counts and what is no JSON are refused with a problem, and nothing is kept."""
    answer = caller.post("/api/v1/observations", content=body, headers={"content-type": kind})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    with store.transaction() as tx:
        assert tx.observations.newest("math") == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"owner": "ada", "role": "viewer", "days": NaN, "actor": "x"}',
        '{"owner": "ada", "role": "viewer", "days": Infinity, "actor": "x"}',
        '{"owner": "ada", "role": "viewer", "days": 1e999, "actor": "x"}',
        '{"owner": "ada", "role": "viewer", "days": "1", "actor": "x"}',
        '{"owner": "ada", "role": "viewer", "days": 0, "actor": "x"}',
        '{"owner": "ada", "role": "emperor", "actor": "x"}',
        '{"owner": "ada", "role": "viewer", "scopes": ["keys"], "actor": "x"}',
        '{"owner": "ada", "role": "viewer", "scopes": ["fly"], "actor": "x"}',
        '{"owner": "ada\\u0000", "role": "viewer", "actor": "x"}',
        '{"owner": "\\ud800", "role": "viewer", "actor": "x"}',
        '{"owner": " ", "role": "viewer", "actor": "x"}',
        '{"owner": "ada", "role": "viewer", "actor": "x", "surprise": 1}',
        '{"owner": "ada", "role": "viewer"}',
    ],
)
def test_a_strict_model_refuses(store: InMemoryStore, caller: TestClient, text: str) -> None:
    """A3.4 and A3.5: no NaN, no loose type, and no unknown word, in any body."""
    answer = caller.post("/api/v1/keys", content=text, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert store.state.keys == {}


@pytest.mark.parametrize("planted", ["speedd_ratio: 1.1", "speed_ratio: .nan", "alpha: .inf"])
def test_a_policy_that_names_what_is_not_there_is_refused(caller: TestClient, planted: str) -> None:
    """A3.5, A5.4: an unknown gate or a NaN threshold is an error at write time, never a silent pass."""
    text = f"{dump(policy_of('math'))}\ngates:\n  {planted}\n"
    answer = caller.put("/api/v1/policies/math", json={"text": text, "actor": "ada"}, headers={"If-Match": "*"})
    assert (answer.status_code, answer.json()["code"]) == (422, "policy")
    assert planted.split(":")[0] in answer.json()["detail"] + answer.json()["where"]


def test_a_looser_policy_needs_somebody_else(store: InMemoryStore) -> None:
    """A3.27: nobody approves what they proposed, whichever key they use."""
    text = dump(policy_of("math")) + "gates:\n  speed_ratio: 0.9\n"
    ada, same, grace = (key_for(store, Role.APPROVER, owner) for owner in ("ada", "ada", "grace"))
    path = "/api/v1/policies/math"
    with client(store) as caller:
        found = caller.post(f"{path}/diff", json={"text": text}, headers=bearer(ada)).json()
        assert (found["looser"], [c["path"] for c in found["changes"]]) == (True, ["gates.speed_ratio"])
        refused = caller.put(path, json={"text": text}, headers={"If-Match": "*", **bearer(ada)})
        assert (refused.status_code, refused.json()["code"]) == (409, "approval_needed")
        proposed = caller.get(f"{path}/proposal", headers=bearer(grace)).json()
        assert (proposed["author"], proposed["content_hash"]) == ("ada", found["content_hash"])
        agreed = {"content_hash": proposed["content_hash"]}
        for secret in (ada, same):
            assert caller.post(f"{path}/approve", json=agreed, headers=bearer(secret)).status_code == 403
        done = caller.post(f"{path}/approve", json=agreed, headers=bearer(grace))
        assert (done.status_code, done.json()["content_hash"]) == (200, found["content_hash"])
        event = caller.get("/api/v1/audit/math?kind=policy", headers=bearer(ada)).json()["events"][0]
        assert (event["actor"], event["body"]["approved_by"]) == ("ada", "grace")


def test_feedback_finds_the_request_s_arm(store: InMemoryStore, caller: TestClient) -> None:
    path = "/api/v1/feedback"
    word = {"route": "math", "request_id": "r1", "thumbs": -1}
    assert caller.post(path, json=word).json()["where"] == "/arm"
    caller.post("/api/v1/observations", json=observation(1))
    assert caller.post(path, json=word).json() == {"state": "new"}
    assert caller.post(path, json={**word, "thumbs": 1}).json() == {"state": "repeat"}
    success = {"route": "math", "request_id": "r1", "task_success": True}
    assert caller.post(path, json=success).json() == {"state": "new"}
    assert caller.post(path, json={**success, "arm": "baseline"}).status_code == 400
    for wrong in ({**word, "task_success": True}, {"route": "math", "request_id": "r1"}, {**word, "route": "nowhere"}):
        assert caller.post(path, json=wrong).status_code in (400, 404)
    with store.transaction() as tx:
        words = [o for _, o in tx.observations.after("math", 1, 10)]
    assert [(o.arm.value, o.thumbs, o.task_success) for o in words] == [("candidate", -1, None), ("candidate", None, True)]


def test_a_limited_gateway_reports_about_its_routes_only(store: InMemoryStore) -> None:
    secret = key_for(store, Role.OPERATOR, routes=("creative",))
    with client(store, secret) as caller:
        told = caller.post("/api/v1/observations", json=[observation(1), observation(1, "creative")]).json()
        assert [item["state"] for item in told["items"]] == ["refused", "new"]
        assert caller.post("/api/v1/observations", json=observation(2)).status_code == 403
        assert caller.post("/api/v1/feedback", json={"route": "math", "request_id": "r1", "thumbs": 1}).status_code == 403
        assert set(caller.get("/api/v1/flags/snapshot").json()["flags"]) == {"creative"}


def test_pairs_show_numbers_and_their_content_only_by_name() -> None:
    """A3.23: both arms of a pair stand under their own names, by ordinal; a tombstone is left out, never averaged."""
    store = InMemoryStore()
    add_route(store, "math")
    with store.transaction() as tx:
        rollout = tx.rollouts.get("math")
        assert rollout is not None
        tx.prompts.add_many([samples.prompt(n) for n in range(3)], NOW)
        claims = tx.claims.claim(rollout, limit=3, before_ordinal=None, worker="w", now=NOW, lease_seconds=60, max_retries=1)
        for claim in (claims[0], claims[2]):
            tx.pairs.add(samples.pair(claim), NOW)
            assert tx.claims.finish(claim, failed=False)
        assert tx.claims.finish(claims[1], failed=True)
        tx.commit()
    viewer, reader = key_for(store, Role.VIEWER), key_for(store, Role.OPERATOR, scopes=(Action.CONTENT, Action.READ))
    with client(store) as caller:
        base = "/api/v1/routes/math/pairs"
        first = caller.get(f"{base}?limit=1", headers=bearer(viewer)).json()
        rest = caller.get(base, params={"cursor": first["next"]}, headers=bearer(viewer)).json()
        found = first["pairs"] + rest["pairs"]
        assert [pair["ordinal"] for pair in found] == [0, 2]
        assert rest["next"] is None
        whole = samples.pair(claims[0])
        assert found[0]["baseline"]["num_tokens"] == len(whole.baseline.token_ids)
        assert found[0]["candidate"]["num_accepted_tokens"] == whole.candidate.stats.num_accepted_tokens
        assert "text" not in json.dumps(found)
        content = f"{base}/{found[0]['pair_id']}/content"
        assert caller.get(content, headers=bearer(viewer)).status_code == 403
        shown = caller.get(content, headers=bearer(reader)).json()
        assert (shown["baseline"], shown["candidate"]) == (whole.baseline.text, whole.candidate.text)
        assert [m["content"] for m in shown["prompt"]["messages"]] == [m.content for m in claims[0].prompt.messages]
        assert shown["prompt"]["endpoint"] == claims[0].prompt.endpoint
    with store.transaction() as tx:
        events = tx.audit.list("math", 9, kind="content_read")
    assert [(e["actor"], e["body"]["pair_id"]) for e in events] == [("operator@example.org", found[0]["pair_id"])]  # type: ignore[index]
