"""The REST API on a real server: flags from memory with an ETag, rollouts, verdicts, the kill switch, problems everywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from canary.domain.errors import UnreachableError
from canary.domain.flag import Snapshot
from canary.flow.ports import Store
from canary.flow.tools.reports import route_verdict
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, add_route, call, decide_now, post_json, serving, set_weight


@pytest.fixture
def store() -> Store:
    made = InMemoryStore()
    add_route(made, "math")
    add_route(made, "creative")
    set_weight(made, "math", 500)
    return made


@pytest.fixture
def url(store: Store) -> Iterator[str]:
    with serving(store) as base:
        yield base


def test_the_snapshot_has_an_etag_over_its_content(store: Store, url: str) -> None:
    first = call(f"{url}/api/v1/flags/snapshot")
    assert first.status == 200
    assert int(first.headers["age"]) >= 0
    assert Snapshot.from_json(first.body.decode(), NOW).flags["math"].weight == 500
    with store.transaction() as tx:
        assert first.body.decode() == tx.flags.snapshot(NOW).to_json()
    for tag in (first.headers["etag"], f'"other", W/{first.headers["etag"]}', "*"):
        again = call(f"{url}/api/v1/flags/snapshot", headers={"If-None-Match": tag})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert "age" in again.headers
    other = call(f"{url}/api/v1/flags/snapshot", headers={"If-None-Match": '"other"'})
    assert (other.status, other.body) == (200, first.body)


def test_a_kill_is_in_the_very_next_snapshot(url: str) -> None:
    before = call(f"{url}/api/v1/flags/snapshot")
    answer = post_json(f"{url}/api/v1/routes/math/kill", {"reason": "users complain", "actor": "ada"})
    said = {"route": "math", "killed": True, "kill_reason": "manual: users complain", "weight": 0, "settled": True}
    assert answer.status == 200
    assert said.items() <= answer.json.items()
    after = call(f"{url}/api/v1/flags/snapshot", headers={"If-None-Match": before.headers["etag"]})
    assert after.status == 200
    snapshot = Snapshot.from_json(after.body.decode(), NOW)
    assert snapshot.flags["math"].killed
    assert not snapshot.flags["creative"].killed
    assert post_json(f"{url}/api/v1/routes/math/kill", {"reason": "again", "actor": "bob"}).json == answer.json
    undone = post_json(f"{url}/api/v1/routes/math/unkill", {"reason": "it was the gateway", "actor": "bob"})
    assert (undone.status, undone.json) == (200, {"route": "math", "killed": False, "state": "shadow", "attempt": 2})
    assert not Snapshot.from_json(call(f"{url}/api/v1/flags/snapshot").body.decode(), NOW).flags["math"].killed
    twice = post_json(f"{url}/api/v1/routes/math/unkill", {"reason": "again", "actor": "bob"})
    assert (twice.status, twice.json["code"]) == (409, "conflict")


def test_rollouts_are_listed_and_shown(store: Store, url: str) -> None:
    decide_now(store, "math")
    listed = call(f"{url}/api/v1/rollouts").json["rollouts"]
    assert isinstance(listed, list)
    assert [(r["route"], r["state"], r["weight"]) for r in listed] == [("creative", "shadow", 0), ("math", "shadow", 500)]
    assert listed[0]["entered_at"] == "2023-11-14T22:13:20.000Z"
    shown = call(f"{url}/api/v1/rollouts/math").json
    last = shown["last"]
    assert isinstance(last, dict)
    assert [g["gate"] for g in last["gates"]] == ["speed", "bank_certificate"]
    assert last["gates"][0]["high"] is None, "an open bound is null, never a number that JSON does not have"
    assert shown["audit"]


@pytest.mark.parametrize(
    ("verdicts", "decided", "verdict", "code"),
    [
        ((), None, "no_data", 4),
        (("pass", "pass"), None, "pass", 0),
        (("pass", "pass"), (9, "all_pass"), "pass", 0),
        (("pass", "inconclusive"), None, "inconclusive", 3),
        (("inconclusive", "no_data"), (7, "no_data"), "inconclusive", 3),
        (("inconclusive", "no_data"), (7, "no_data_too_long"), "no_data", 4),
        (("pass", "error"), (6, "could_not_measure"), "inconclusive", 3),
        (("error", "fail"), None, "fail", 1),
        (("pass", "pass"), (7, "stale"), "no_data", 4),
        (("pass", "pass"), (9, "drill_not_caught"), "fail", 1),
        (("pass", "pass"), (9, "rolled_back"), "inconclusive", 3),
    ],
)
def test_the_verdict_is_one_small_object(
    store: Store, url: str, verdicts: tuple[str, ...], decided: tuple[int, str] | None, verdict: str, code: int
) -> None:
    if verdicts:
        decide_now(store, "math", verdicts, decided=decided)
    answer = call(f"{url}/api/v1/routes/math/verdict")
    assert answer.status == 200
    assert (answer.json["verdict"], answer.json["code"], answer.json["ok"]) == (verdict, code, code == 0)
    assert bool(answer.json["reasons"]) == (code != 0)
    if "inconclusive" in verdicts:
        assert answer.json["needed"] == 120
        assert answer.json["samples"] == 40


@pytest.mark.parametrize(
    ("age", "pair_age", "verdict"), [(3_000, 3_000, "pass"), (4_000, 4_000, "no_data"), (1_000, 4_000, "no_data")]
)
def test_a_pass_goes_stale(store: Store, age: float, pair_age: float, verdict: str) -> None:
    decide_now(store, "math", ("pass", "pass"), at=NOW - age, newest_pair_at=NOW - pair_age)
    with store.transaction() as tx:
        found = route_verdict(tx, "math", NOW)
    assert (found.verdict, found.ok) == (verdict, verdict == "pass")
    assert not found.ok or found.reasons == ()
    assert found.ok or "4000 s old; evidence is stale after 3600 s" in found.reasons[0]


def test_a_failure_stays_one_while_its_evidence_goes_stale(store: Store) -> None:
    decide_now(store, "math", ("fail", "pass"), decided=(5, "not_worth_it"), at=NOW - 4_000)
    with store.transaction() as tx:
        assert route_verdict(tx, "math", NOW).verdict == "fail"


def test_a_killed_route_says_so_whatever_its_gates_say(store: Store, url: str) -> None:
    decide_now(store, "math", ("pass", "pass"))
    post_json(f"{url}/api/v1/routes/math/kill", {"reason": "users complain", "actor": "ada"})
    answer = call(f"{url}/api/v1/routes/math/verdict").json
    assert (answer["verdict"], answer["code"], answer["ok"]) == ("killed", 6, False)
    assert answer["reasons"] == ["manual: users complain"]


def test_an_older_attempts_gates_are_no_verdict(store: Store, url: str) -> None:
    decide_now(store, "math", ("pass", "pass"))
    post_json(f"{url}/api/v1/routes/math/kill", {"reason": "a drill", "actor": "ada"})
    post_json(f"{url}/api/v1/routes/math/unkill", {"reason": "drill over", "actor": "ada"})
    assert call(f"{url}/api/v1/routes/math/verdict").json["verdict"] == "no_data"
    last = call(f"{url}/api/v1/rollouts/math").json["last"]
    assert isinstance(last, dict)
    assert last["earlier_attempt"] is True


def test_a_decision_before_any_engine_belongs_to_this_attempt(store: Store, url: str) -> None:
    decision = {"kind": "stay", "row": 7, "reason": "no_pairs", "sentence": "no data yet", "missing": [], "at": NOW}
    body = {"decision": decision, "gates": []}
    with store.transaction() as tx:
        tx.audit.append("math", "decision", "policy", body, NOW + 1)
        tx.audit.append("creative", "decision", "policy", body, NOW - 1)
        tx.commit()
    assert call(f"{url}/api/v1/rollouts/math").json["last"] == body
    assert call(f"{url}/api/v1/rollouts/creative").json["last"] == {**body, "earlier_attempt": True}
    assert call(f"{url}/api/v1/routes/math/verdict").json["verdict"] == "no_data"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/api/v1/rollouts/nowhere", None, 404, "not_found"),
        ("/api/v1/routes/nowhere/verdict", None, 404, "not_found"),
        ("/api/v1/nothing", None, 404, "not_found"),
        ("/api/v1/routes/nowhere/kill", b'{"reason":"x","actor":"y"}', 404, "not_found"),
        ("/api/v1/routes/math/kill", b"{}", 400, "invalid_request"),
        ("/api/v1/routes/math/kill", b'{"reason":"x"}', 400, "invalid_request"),
        ("/api/v1/routes/math/kill", b'{"reason":"","actor":"y"}', 400, "invalid_request"),
        ("/api/v1/routes/math/kill", b'{"reason":" ","actor":"y"}', 400, "invalid_request"),
        ("/api/v1/routes/math/kill", b'{"reason":"x","actor":"y","force":true}', 400, "invalid_request"),
        ("/api/v1/routes/math/kill", b"not JSON", 400, "invalid_request"),
        ("/api/v1/rollouts", b"{}", 405, "http"),
    ],
)
def test_every_error_is_a_problem(url: str, path: str, body: bytes | None, status: int, code: str) -> None:
    answer = call(url + path, body, {"content-type": "application/json"})
    assert (answer.status, answer.json["status"], answer.json["code"]) == (status, status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["detail"]


def test_a_missing_field_is_pointed_at(url: str) -> None:
    answer = post_json(f"{url}/api/v1/routes/math/kill", {"reason": "x"})
    assert answer.json["where"] == "/actor"


class Away:
    """A store that can go away."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.error: Exception | None = None

    def transaction(self):  # type: ignore[no-untyped-def]
        if self.error is not None:
            raise self.error
        return self._inner.transaction()


def test_flags_are_served_while_the_store_is_away(store: Store) -> None:
    away = Away(store)
    with serving(away) as url:
        before = call(f"{url}/api/v1/flags/snapshot")
        away.error = UnreachableError("the database does not answer")
        during = call(f"{url}/api/v1/flags/snapshot")
        assert (during.status, during.body, during.headers["etag"]) == (200, before.body, before.headers["etag"])
        answer = call(f"{url}/api/v1/rollouts")
        assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "unreachable", "1")
        assert call(f"{url}/healthz").status == 200
        away.error = RuntimeError("row of a secret prompt")
        answer = call(f"{url}/api/v1/rollouts")
        assert (answer.status, answer.json["code"]) == (500, "error")
        assert b"secret" not in answer.body


def test_without_a_first_snapshot_the_answer_is_503(store: Store) -> None:
    away = Away(store)
    away.error = UnreachableError("the database does not answer")
    with serving(away) as url:
        answer = call(f"{url}/api/v1/flags/snapshot")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")


def test_the_server_never_loads_torch() -> None:
    load = "import sys, canary.api.app, canary.edge.listener, canary.cli.serve"
    code = f"{load}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
