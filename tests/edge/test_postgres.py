"""Listener and API on a real Postgres: duplicates, concurrency, bytes and kills behave as in memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from canary.client import FlagClient
from canary.domain.flag import Resolution
from canary.flow.ports import Store
from canary.wiring import store_on
from tests.api.served import add_route, call, post_json, serving, set_weight
from tests.edge.bad_bodies import chat


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with store_on(database) as made:
        add_route(made, "math")
        yield made


def test_concurrent_posters_and_kills_on_postgres(store: Store) -> None:
    set_weight(store, "math", 10_000)
    body = b'{ "messages":[{"role":"user","content":"\\u0000 \\ud83d\\ude00 \xc3\xa9"}],\r\n "model":"a","model":"b" }'
    with serving(store) as url, FlagClient(url, start=False) as client:
        mirror = f"{url}/mirror/v1/math/chat/completions"

        def post(at: int) -> str:
            return str(call(mirror, chat(seed=at // 2), {"x-request-id": f"id-{at // 2}"}).json["state"])

        with ThreadPoolExecutor(10) as pool:
            states = list(pool.map(post, range(100)))
        assert (states.count("accepted"), states.count("duplicate")) == (50, 50)
        assert call(mirror, body, {"x-request-id": "exact"}).json["state"] == "accepted"
        assert client.refresh()
        assert client.resolve("math") == Resolution("candidate", "STATIC")
        assert post_json(f"{url}/api/v1/routes/math/kill", {"reason": "users complain", "actor": "ada"}).status == 200
        assert client.refresh()
        assert client.resolve("math") == Resolution("baseline", "DISABLED")
        assert call(f"{url}/api/v1/routes/math/verdict").json["verdict"] == "killed"
        undone = post_json(f"{url}/api/v1/routes/math/unkill", {"reason": "a drill", "actor": "ada"})
        assert undone.json == {"route": "math", "killed": False, "state": "shadow", "attempt": 2}
        assert post_json(f"{url}/api/v1/routes/math/unkill", {"reason": "a drill", "actor": "ada"}).status == 409
    with store.transaction() as tx:
        assert tx.prompts.count("math") == 51
        rollout = tx.rollouts.get("math", lock=True)
        assert rollout is not None
        claims = tx.claims.claim(
            rollout, limit=99, before_ordinal=None, worker="w", now=0.0, lease_seconds=9.0, max_retries=1
        )  # fmt: skip
    (exact,) = (c.prompt for c in claims if c.prompt.request_id == "exact")
    assert exact.body == body
    assert exact.messages[0].content == "\x00 \U0001f600 é"
