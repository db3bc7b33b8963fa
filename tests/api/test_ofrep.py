"""The OpenFeature remote evaluation protocol on a real server: shapes, tags, limits, and the baseline whatever goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from canary.api.flags import FlagCache
from canary.api.limits import Buckets, Limits
from canary.api.ofrep import Ofrep, routes_of
from canary.api.streams import EventStreams
from canary.domain.access import Caller, Key, Role
from canary.domain.errors import UnreachableError
from canary.flow.ports import Store
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, Answer, Notes, add_route, call, post_json, serving, set_weight

EVALUATE = "/ofrep/v1/evaluate/flags"


@pytest.fixture(scope="module")
def store() -> Store:
    made = InMemoryStore()
    for route in ("math", "creative", "full", "dead"):
        add_route(made, route)
    set_weight(made, "math", 500)
    set_weight(made, "full", 10_000)
    with made.transaction() as tx:
        flag = tx.flags.get("dead")
        assert flag is not None
        tx.flags.put(replace(flag, weight=10_000).switched(True, reason="manual: no", kill_id="k1", at=NOW))
        tx.commit()
    return made


@pytest.fixture(scope="module")
def url(store: Store) -> Iterator[str]:
    with serving(store) as base:
        yield base


def ask(url: str, key: str, unit: str | None = "user-2", **headers: str) -> Answer:
    context = {} if unit is None else {"targetingKey": unit}
    return post_json(f"{url}{EVALUATE}/{key}", {"context": context}, headers)


@pytest.mark.parametrize(
    ("key", "unit", "value", "variant", "reason"),
    [
        ("specdec.math", "user-1", False, "baseline", "SPLIT"),
        ("specdec.creative", None, False, "baseline", "STATIC"),
        ("specdec.full", None, True, "candidate", "STATIC"),
        ("specdec.full", "user-1", True, "candidate", "STATIC"),
        ("specdec.dead", "user-1", False, "baseline", "DISABLED"),
        ("specdec-config.dead", None, {"num_speculative_tokens": 0}, "baseline", "DISABLED"),
    ],
)
def test_one_flag_always_has_value_variant_reason_and_metadata(
    url: str, key: str, unit: str | None, value: object, variant: str, reason: str
) -> None:
    for slash in ("", "/"):
        answer = ask(url, key + slash, unit)
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        body = answer.json
        assert set(body) == {"key", "value", "variant", "reason", "metadata"}
        assert (body["key"], body["value"], body["variant"], body["reason"]) == (key, value, variant, reason)
        assert isinstance(body["metadata"], dict)
        assert body["metadata"]["stage"] == "shadow"


def test_a_killed_route_is_a_value_and_no_error_a5_13(url: str) -> None:
    body = ask(url, "specdec.dead").json
    assert (body["value"], body["variant"], body["reason"]) == (False, "baseline", "DISABLED")
    assert "errorCode" not in body
    metadata: Any = body["metadata"]
    assert (metadata["kill_reason"], metadata["kill_id"], metadata["killed_at"]) == ("manual: no", "k1", NOW)


@pytest.mark.parametrize("body", [b"", b"  ", b"{}", b'{"context": {}}'])
def test_no_unit_is_fine_at_0_and_100_percent_and_an_error_between_a3_21(url: str, body: bytes) -> None:
    for route, status in (("creative", 200), ("full", 200), ("dead", 200), ("math", 400)):
        answer = call(f"{url}{EVALUATE}/specdec.{route}", body, method="POST")
        assert answer.status == status
        if status == 400:
            assert (answer.json["key"], answer.json["errorCode"]) == ("specdec.math", "TARGETING_KEY_MISSING")
            assert answer.json["errorDetails"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "PARSE_ERROR"),
        (b"\xff", "PARSE_ERROR"),
        (b"[]", "PARSE_ERROR"),
        (b"null", "PARSE_ERROR"),
        (b'{"context": {"targetingKey": NaN}}', "PARSE_ERROR"),
        (b'{"context": {"targetingKey": "\\ud800"}}', "PARSE_ERROR"),
        (b"[" * 60_000, "PARSE_ERROR"),
        (b'{"context": []}', "INVALID_CONTEXT"),
        (b'{"context": null}', "INVALID_CONTEXT"),
        (b'{"context": {"targetingKey": 7}}', "INVALID_CONTEXT"),
    ],
)
def test_a_wrong_request_has_a_code_and_details(url: str, body: bytes, code: str) -> None:
    for path in (f"{EVALUATE}/specdec.math", EVALUATE):
        answer = call(url + path, body, method="POST")
        assert (answer.status, answer.json["errorCode"]) == (400, code)
        assert answer.json["errorDetails"]


def test_an_unknown_flag_is_not_found(url: str) -> None:
    for key in ("specdec.nothing", "nothing", "specdec-config.nothing", "specdec"):
        answer = ask(url, key)
        assert (answer.status, answer.json["errorCode"], answer.json["key"]) == (404, "FLAG_NOT_FOUND", key)
        assert answer.json["errorDetails"]


def test_too_large_a_body_is_413(url: str) -> None:
    answer = call(f"{url}{EVALUATE}/specdec.math", b'{"context": {"x": "' + b"x" * 70_000 + b'"}}', method="POST")
    assert (answer.status, answer.json["errorCode"]) == (413, "GENERAL")


def everything(url: str, unit: str | None = "user-1", tag: str | None = None, **context: object) -> Answer:
    asked = {**context, **({} if unit is None else {"targetingKey": unit})}
    return post_json(f"{url}{EVALUATE}", {"context": asked}, {"If-None-Match": tag} if tag else {})


def test_all_flags_come_with_a_tag_and_where_changes_are_announced(url: str) -> None:
    answer = everything(url)
    body: Any = answer.json
    assert [f["key"] for f in body["flags"]] == [
        f"{kind}.{route}" for route in ("creative", "dead", "full", "math") for kind in ("specdec", "specdec-config")
    ]
    assert body["metadata"] == {"version": 7, "kill_epoch": 1}
    assert body["eventStreams"] == [{"type": "sse", "endpoint": {"requestUri": "/ofrep/v1/events"}, "inactivityDelaySec": 120}]
    assert post_json(f"{url}{EVALUATE}/", {"context": {"targetingKey": "user-1"}}).body == answer.body
    again = everything(url, tag=answer.headers["etag"])
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", answer.headers["etag"])
    assert everything(url, tag=f'"x", W/{answer.headers["etag"]}').status == 304
    for single in body["flags"]:
        assert ask(url, single["key"], "user-1").json == single


def test_a_missing_unit_fails_the_split_flags_only(url: str) -> None:
    flags: Any = everything(url, None).json["flags"]
    failed = {f["key"] for f in flags if "errorCode" in f}
    assert failed == {"specdec.math", "specdec-config.math"}
    assert all("value" in f for f in flags if f["key"] not in failed)


def test_another_context_never_gets_a_304_a5_12(url: str) -> None:
    tags = [
        everything(url, unit, **context).headers["etag"]
        for unit, context in (
            ("user-1", {}),
            ("user-2", {}),
            (None, {}),
            ("user-1", {"tenant": "a"}),
            ("user-1", {"tenant": "b"}),
        )
    ]
    assert len(set(tags)) == len(tags)
    for tag in tags[1:]:
        assert everything(url, "user-1", tag=tag).status == 200
    assert everything(url, "user-1", tag="*").status == 200, "the star names no answer"
    one = post_json(f"{url}{EVALUATE}", {"context": {"a": 1, "targetingKey": "u"}}).headers["etag"]
    other = post_json(f"{url}{EVALUATE}", {"context": {"targetingKey": "u", "a": 1}}).headers["etag"]
    assert one == other, "the order of a context's fields means nothing"


def test_a_kill_changes_every_tag_a5_12(store: Store) -> None:
    own = InMemoryStore()
    add_route(own, "math")
    set_weight(own, "math", 10_000)
    with serving(own) as url:
        before = everything(url)
        assert post_json(f"{url}/api/v1/routes/math/kill", {"reason": "no", "actor": "ada"}).status == 200
        after = everything(url, tag=before.headers["etag"])
        flags: Any = after.json["flags"]
        metadata: Any = after.json["metadata"]
        assert after.status == 200
        assert (flags[0]["reason"], flags[0]["value"], metadata["kill_epoch"] > 0) == ("DISABLED", False, True)


class Away:
    """A store that is away, and counts who asks all the same."""

    asked = 0

    def transaction(self) -> Any:
        self.asked += 1
        raise UnreachableError("the database does not answer")


def made(
    store: Any, *, notes: Notes | None = None, limits: Limits | None = None, clock: Callable[[], float] = lambda: 0.0
) -> Any:
    """The evaluation alone over a cache that nobody refreshes."""
    cache = FlagCache(store, notes or Notes(), monotonic=clock)
    return cache, Ofrep(cache, notes or Notes(), limits or Limits(), clock=clock)


def run(
    handle: Any, body: bytes = b"", key: str = "", caller: Caller | None = None, client: str = "10.0.0.1"
) -> tuple[int, Any, Any]:
    """One request straight into the application: status, headers and body."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"path_params": {"key": key}, "headers": [], "client": (client, 1), "state": {"caller": caller or Caller()}}
    asyncio.run(handle(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])


def test_before_the_first_snapshot_everything_is_the_baseline_a5_18() -> None:
    cache, ofrep = made(Away())
    cache.refresh()
    status, _, body = run(ofrep.one, key="specdec.math")
    assert (status, body["value"], body["variant"], body["reason"]) == (200, False, "baseline", "UNKNOWN")
    assert body["metadata"] == {"stale": True}
    assert run(ofrep.one, key="nothing")[0] == 404
    assert run(ofrep.all)[2]["flags"] == []


def test_evaluation_asks_no_store_a5_18(store: Store) -> None:
    class Moving:
        inner: Any = store

        def transaction(self) -> Any:
            return self.inner.transaction()

    moving, now = Moving(), [100.0]
    cache, ofrep = made(moving, clock=lambda: now[0])
    cache.refresh()
    moving.inner = away = Away()
    for _ in range(50):
        assert run(ofrep.one, b'{"context": {"targetingKey": "u"}}', "specdec.math")[0] == 200
        assert run(ofrep.all)[0] == 200
    assert away.asked == 0
    now[0] += 61
    cache.refresh()
    assert away.asked == 1
    answers = {
        route: run(ofrep.one, b'{"context": {"targetingKey": "user-2"}}', f"specdec.{route}")[2]
        for route in ("math", "full", "dead")
    }
    assert (answers["math"]["reason"], answers["math"]["value"]) == ("UNKNOWN", False)
    assert (answers["math"]["metadata"]["stale"], answers["math"]["metadata"]["age_seconds"]) == (True, 61), "A3.20: it says so"
    assert (answers["full"]["reason"], answers["dead"]["reason"]) == ("STATIC", "DISABLED")


def test_any_exception_is_the_baseline_a5_16(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    notes = Notes()
    cache, ofrep = made(store, notes=notes)
    cache.refresh()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a missing object")

    monkeypatch.setattr("canary.api.ofrep.evaluate", broken)
    status, _, body = run(ofrep.one, b'{"context": {"targetingKey": "u"}}', "specdec.full")
    assert (status, body["value"], body["variant"], body["reason"]) == (200, False, "baseline", "UNKNOWN")
    _, _, everything_ = run(ofrep.all)
    assert {f["value"] for f in everything_["flags"] if f["key"].startswith("specdec.")} == {False}
    assert ("flag_not_evaluated", {"key": "specdec.full", "error": "RuntimeError"}) in notes.seen


def test_a_limited_key_sees_its_own_routes_only(store: Store) -> None:
    cache, ofrep = made(store)
    cache.refresh()
    caller = Caller(Key("k", "d", "ada", Role.VIEWER, routes=("math",)))
    assert [f["key"] for f in run(ofrep.all, caller=caller)[2]["flags"]] == ["specdec.math", "specdec-config.math"]


def test_shedding_names_whole_seconds_a3_28(store: Store) -> None:
    now = [0.0]
    cache, ofrep = made(store, limits=Limits(rate=0.4, burst=2), clock=lambda: now[0])
    cache.refresh()
    answers = []
    for now[0] in (0.0, 0.0, 0.0, 2.4, 2.6):
        answers.append(run(ofrep.one, key="specdec.full"))
    assert [a[0] for a in answers] == [200, 200, 429, 429, 200]
    assert answers[2][1][b"retry-after"] == b"3"
    assert answers[3][1][b"retry-after"] == b"1", "never 0: that would be no pause at all"
    assert answers[2][2]["errorDetails"]
    assert run(ofrep.one, key="specdec.full", client="10.0.0.2")[0] == 200, "another client's bucket is full"


def test_buckets_are_bounded_and_can_be_off() -> None:
    buckets = Buckets(1.0, 1.0, lambda: 0.0, max_clients=3)
    assert [buckets.wait(c) for c in "abcab"] == [0, 0, 0, 1, 1]
    assert buckets.wait("d") == 0
    assert buckets.wait("c") == 0, "the quietest was forgotten, with a full bucket"
    assert [Buckets(0.0, 1.0, lambda: 0.0).wait("a") for _ in range(3)] == [0, 0, 0]


def test_the_router_serves_exactly_the_protocols_paths(store: Store) -> None:
    cache, ofrep = made(store)
    found = routes_of(ofrep, EventStreams(cache, 1)).routes
    paths = {(r.path, tuple(sorted(r.methods or ()))) for r in found}  # type: ignore[attr-defined]
    assert paths == {
        ("/ofrep/v1/evaluate/flags/{key}", ("POST",)),
        ("/ofrep/v1/evaluate/flags/{key}/", ("POST",)),
        ("/ofrep/v1/evaluate/flags", ("POST",)),
        ("/ofrep/v1/evaluate/flags/", ("POST",)),
        ("/ofrep/v1/events", ("GET", "HEAD")),
    }
