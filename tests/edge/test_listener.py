"""The mirror listener as a real server on loopback: 202 after the commit, problems with pointers, nothing lost or leaked."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from canary.flow.ports import Store
from canary.inmemory import InMemoryStore
from tests.api.served import add_route, call, post_json, serving
from tests.edge.bad_bodies import BAD, SECRET, chat, completion

MAX_BODY = 64 * 1024


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Store, str]]:
    store = InMemoryStore()
    add_route(store, "math")
    with serving(store, MAX_BODY) as url:
        yield store, url


def count(store: Store, route: str = "math") -> int:
    with store.transaction() as tx:
        return tx.prompts.count(route)


def chat_url(url: str, route: str = "math") -> str:
    return f"{url}/mirror/v1/{route}/chat/completions"


def test_a_copy_is_stored_once_and_answered_after_the_commit(served: tuple[Store, str]) -> None:
    store, url = served
    before = count(store)
    headers = {"x-request-id": "once", "x-canary-source": "gw"}
    first = call(chat_url(url), chat(), headers)
    assert (first.status, first.json) == (202, {"id": "once", "state": "accepted"})
    assert count(store) == before + 1
    again = call(chat_url(url), chat(), headers)
    assert (again.status, again.json) == (202, {"id": "once", "state": "duplicate"})
    other = call(chat_url(url), chat(), {**headers, "x-canary-source": "another"})
    assert other.json["state"] == "accepted"
    assert count(store) == before + 2


def test_without_an_id_one_is_made(served: tuple[Store, str]) -> None:
    _, url = served
    ids = {call(f"{url}/mirror/v1/math/completions", completion()).json["id"] for _ in range(2)}
    assert len(ids) == 2


def test_bytes_arrive_exactly_and_credentials_do_not(served: tuple[Store, str]) -> None:
    """A3.25: a copy carries no credential that could bill or act."""
    store, url = served
    add_route(store, "exact")
    body = b'{ "messages":[{"role":"user","content":"\\u0000 \\ud83d\\ude00 \xc3\xa9"}],\r\n "model":"a","model":"b" }'
    secret = {"Authorization": f"Bearer {SECRET}", "Cookie": f"a={SECRET}", "x-request-id": "exact-1"}
    assert call(chat_url(url, "exact"), body, secret).status == 202
    with store.transaction() as tx:
        rollout = tx.rollouts.get("exact", lock=True)
        assert rollout is not None
        (claim,) = tx.claims.claim(rollout, limit=9, before_ordinal=None, worker="w", now=0.0, lease_seconds=9.0, max_retries=1)
    assert claim.prompt.body == body
    assert SECRET not in repr(claim)


@pytest.mark.parametrize(("name", "endpoint", "body", "code", "where"), BAD, ids=[row[0] for row in BAD])
def test_bad_bodies_are_problems(served: tuple[Store, str], name: str, endpoint: str, body: bytes, code: str, where: str) -> None:
    store, url = served
    before = count(store)
    answer = call(f"{url}/mirror/v1/math/{endpoint}", body, method="POST")
    assert answer.status == (422 if code == "unsupported_request" else 400)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json["code"], answer.json.get("where", "")) == (code, where)
    assert answer.json["status"] == answer.status
    assert SECRET not in answer.body.decode()
    assert count(store) == before


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/mirror/v1/nowhere/chat/completions", "POST", 404),
        ("/mirror/v1/math/embeddings", "POST", 404),
        ("/mirror/v1/math/chat/completions/more", "POST", 404),
        ("/mirror/v1/MATH!/chat/completions", "POST", 404),
        ("/mirror/v1/a%2Fb/chat/completions", "POST", 404),
        ("/mirror/v1/", "POST", 404),
        ("/mirror/v1/math/chat/completions", "GET", 405),
        ("/mirror/v1/math/chat/completions", "PUT", 405),
    ],
)
def test_wrong_places_are_problems(served: tuple[Store, str], path: str, method: str, status: int) -> None:
    _, url = served
    answer = call(url + path, None if method == "GET" else chat(), method=method)
    assert (answer.status, answer.json["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["remedy"]


@pytest.mark.parametrize(
    ("headers", "status", "where"),
    [
        ({"x-request-id": "a b"}, 400, "header x-request-id"),
        ({"x-request-id": "x" * 201}, 400, "header x-request-id"),
        ({"x-canary-source": "\xe9"}, 400, "header x-canary-source"),
        ({"content-encoding": "gzip"}, 422, "header content-encoding"),
        ({"content-type": 'application/json; charset="latin-1"'}, 422, "header content-type"),
    ],
)
def test_wrong_headers_are_problems(served: tuple[Store, str], headers: dict[str, str], status: int, where: str) -> None:
    _, url = served
    answer = call(chat_url(url), chat(), headers)
    assert (answer.status, answer.json["where"]) == (status, where)


@pytest.mark.parametrize(
    ("value", "state"), [("1", "opted_out"), ("true", "opted_out"), ("0", "accepted"), ("False", "accepted")]
)
def test_the_opt_out_is_honoured_before_anything_is_read(served: tuple[Store, str], value: str, state: str) -> None:
    store, url = served
    before = count(store)
    body = chat() if state == "accepted" else b"not even JSON"
    answer = call(chat_url(url), body, {"x-canary-opt-out": value})
    assert (answer.status, answer.json["state"]) == (202, state)
    assert count(store) == before + (state == "accepted")


def test_an_announced_size_is_refused_before_the_body_is_sent(served: tuple[Store, str]) -> None:
    _, url = served
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.putrequest("POST", "/mirror/v1/math/chat/completions")
    connection.putheader("content-length", str(MAX_BODY + 1))
    connection.endheaders()
    answer = connection.getresponse()
    problem = json.loads(answer.read())
    connection.close()
    assert (answer.status, problem["code"]) == (413, "too_large")
    assert str(MAX_BODY) in problem["detail"]


def test_a_streamed_size_is_refused_while_streaming(served: tuple[Store, str]) -> None:
    store, url = served
    before = count(store)
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as raw:
        raw.sendall(b"POST /mirror/v1/math/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        chunk = b"x" * 8192
        for _ in range(MAX_BODY // len(chunk) + 1):
            raw.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        # The body never ends, so only a refusal in mid-stream can answer.
        assert raw.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert count(store) == before


def test_the_size_limit_itself_passes_and_chunks_are_joined(served: tuple[Store, str]) -> None:
    _, url = served
    body = chat(user="")
    body = chat(user="u" * (MAX_BODY - len(body)))
    assert len(body) == MAX_BODY
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    parts = [body[at : at + 5000] for at in range(0, len(body), 5000)]
    connection.request(
        "POST",
        "/mirror/v1/math/chat/completions",
        body=iter(parts),
        encode_chunked=True,
        headers={"transfer-encoding": "chunked"},
    )
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["state"]) == (202, "accepted")
    connection.close()


def test_ten_concurrent_posters_lose_nothing(served: tuple[Store, str]) -> None:
    store, url = served
    add_route(store, "busy")

    def post(at: int) -> str:
        # Every id is sent by two posters, and each pair is stored once.
        return str(call(chat_url(url, "busy"), chat(seed=at // 2), {"x-request-id": f"busy-{at // 2}"}).json["state"])

    with ThreadPoolExecutor(10) as pool:
        states = list(pool.map(post, range(400)))
    assert sorted(set(states)) == ["accepted", "duplicate"]
    assert states.count("accepted") == states.count("duplicate") == count(store, "busy") == 200


def test_answers_are_json(served: tuple[Store, str]) -> None:
    _, url = served
    answer = post_json(chat_url(url), json.loads(chat()))
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.body)
