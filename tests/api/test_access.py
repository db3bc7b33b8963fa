"""Who is let in: every endpoint of the application x role x route scope, keys in all their states, a service without keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient

from canary.api.actions import ACTIONS, Entry
from canary.api.auth import Gate
from canary.api.idempotency import Repeats
from canary.api.keyring import KeyRing, Mode
from canary.domain.access import ANYBODY, MAY, Action, Reach, Role, refusal
from canary.domain.errors import UnreachableError, UsageError
from canary.flow.tools import keys
from canary.flow.tools.keys import make_key
from canary.inmemory import InMemoryStore
from tests.api.keyed import application, bearer, client, key_for
from tests.api.served import NOW, Notes, add_route

# What stands for a path's parameter.
FILL = {
    "route": "math",
    "key": "specdec.math",
    "key_id": "0123456789ab",
    "pair_id": "none",
    "name": "retention",
    "unit": "tenant-1",
}


@pytest.fixture
def store() -> InMemoryStore:
    made = InMemoryStore()
    add_route(made, "math")
    add_route(made, "creative")
    return made


def endpoints(app: FastAPI) -> Iterator[str]:
    """`METHOD /path` of everything that the application itself answers."""
    for found in iter_route_contexts(app.routes):
        for method in sorted(found.methods or ()):
            if method != "HEAD":
                yield f"{method} {found.path}"


def filled(path: str, route: str = "math") -> str:
    values = {**FILL, "route": route, "key": f"specdec.{route}"}
    return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], path)


def ask(caller: TestClient, name: str, headers: dict[str, str], route: str = "math") -> int:
    method, path = name.split(" ", 1)
    return caller.request(method, filled(path, route), headers=headers, json=None if method == "GET" else {}).status_code


async def let_in(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
    """What stands behind the gate where only the gate is tested."""
    await PlainTextResponse("in")(scope, receive, send)


def test_every_endpoint_has_an_action_and_every_action_an_endpoint() -> None:
    """A new endpoint without a row in the table fails here, and is not served meanwhile."""
    found = set(endpoints(application(InMemoryStore())))
    assert found == set(ACTIONS)


def test_the_matrix_of_endpoints_roles_and_routes(store: InMemoryStore) -> None:
    """A3.27: no endpoint answers anybody whom the table does not let in, and none refuses whom it does."""
    secrets = {role: (key_for(store, role), key_for(store, role, routes=("creative",))) for role in Role}
    ring = KeyRing(store, Notes())
    ring.refresh()
    app = application(store)
    assert [(m.cls, m.kwargs["entries"]) for m in app.user_middleware] == [(Gate, ACTIONS)]
    caller = TestClient(Gate(let_in, ring=ring, entries=ACTIONS, repeats=Repeats(store, lambda: NOW), clock=lambda: NOW))
    wrong = []
    for name in endpoints(app):
        entry = ACTIONS[name]
        if ask(caller, name, {}) != (200 if entry.action in ANYBODY else 401):
            wrong.append((name, "nobody", "without a key"))
        for role, (unlimited, limited) in secrets.items():
            wrong += [(name, role, why) for why in _wrong(caller, name, entry, role, unlimited, limited)]
    assert wrong == []


def _wrong(caller: TestClient, name: str, entry: Entry, role: Role, unlimited: str, limited: str) -> Iterator[str]:
    """How one endpoint's answers to one role's keys differ from the table."""
    anybody = entry.action in ANYBODY
    inside = anybody or (entry.action in MAY[role] and entry.action is not Action.CONTENT)
    if ask(caller, name, bearer(unlimited)) != (200 if inside else 403):
        yield "a key for all routes"
    if ask(caller, name, bearer(limited), "creative") != (200 if inside and (anybody or entry.reach is not Reach.WHOLE) else 403):
        yield "a key for this route"
    if entry.reach is Reach.ROUTE and not anybody and ask(caller, name, bearer(limited), "math") != 403:
        yield "a key for another route"


def test_the_table_of_roles_is_the_documented_one() -> None:
    """Golden, so that a right is never given by accident."""
    for weaker, stronger in pairwise(Role):
        assert MAY[weaker] < MAY[stronger]
    given = {
        role: MAY[role] - (MAY[before] if before else frozenset()) for before, role in zip((None, *Role), Role, strict=False)
    }
    assert given == {
        Role.VIEWER: {Action.FLAGS, Action.READ, Action.AUDIT},
        Role.OPERATOR: {Action.INGEST, Action.KILL, Action.OPERATE, Action.POLICY, Action.CONTENT},
        Role.APPROVER: {Action.APPROVE},
        Role.ADMIN: {Action.KEYS},
    }
    allowed = {(action, role) for role in Role for action in MAY[role]}
    for action in set(Action) - ANYBODY:
        for role in Role:
            key = make_key("ada", role, NOW, scopes=(action,) if (action, role) in allowed else ()).key
            assert (refusal(key, action, Reach.WHOLE, None, NOW) is None) == ((action, role) in allowed)


def test_scopes_narrow_a_role_and_content_must_be_named(store: InMemoryStore) -> None:
    gateway = key_for(store, Role.OPERATOR, scopes=(Action.FLAGS, Action.INGEST))
    reader = key_for(store, Role.OPERATOR, scopes=(Action.CONTENT,))
    plain = key_for(store, Role.ADMIN)
    with client(store) as caller:
        assert ask(caller, "GET /api/v1/flags/snapshot", bearer(gateway)) == 200
        assert ask(caller, "POST /api/v1/routes/{route}/kill", bearer(gateway)) == 403
        assert ask(caller, "GET /api/v1/rollouts", bearer(gateway)) == 403
        content = "GET /api/v1/routes/{route}/pairs/{pair_id}/content"
        assert [ask(caller, content, bearer(secret)) for secret in (reader, plain)] == [404, 403]


def test_listings_leave_out_what_a_limited_key_may_not_see(store: InMemoryStore) -> None:
    limited = key_for(store, Role.APPROVER, routes=("creative",))
    with client(store, limited) as caller:
        for path, field in (("rollouts", "rollouts"), ("routes", "routes"), ("policies", "policies"), ("audit", "events")):
            found = {row["route"] for row in caller.get(f"/api/v1/{path}").json()[field]}
            assert found == {"creative"}, path


def test_a_key_that_ended_opens_nothing(store: InMemoryStore) -> None:
    made = keys.create_key(store, "ada", Role.ADMIN, "tests", NOW, days=1)
    other = key_for(store, Role.ADMIN, "grace")
    with client(store) as caller:
        assert caller.get("/api/v1/rollouts", headers=bearer(made.secret)).status_code == 200
        assert caller.get("/api/v1/rollouts", headers={"X-API-Key": made.secret}).status_code == 200
        gone = caller.request("DELETE", f"/api/v1/keys/{made.key.key_id}", headers=bearer(other), json={})
        assert (gone.status_code, gone.json()["active"]) == (200, False)
        refused = caller.get("/api/v1/rollouts", headers=bearer(made.secret))
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
        assert refused.headers["www-authenticate"].startswith("Bearer")
        for wrong in ("", "nonsense", made.secret[:-1] + ("A" if made.secret[-1] != "A" else "B")):
            assert caller.get("/api/v1/rollouts", headers=bearer(wrong)).status_code == 401
        assert caller.get("/api/v1/rollouts", headers={"Authorization": f"Basic {other}"}).status_code == 401


def test_an_expired_key_and_a_rotated_one(store: InMemoryStore) -> None:
    made = keys.create_key(store, "ada", Role.VIEWER, "tests", NOW, days=1)
    key = made.key
    assert key.active(NOW + 86_399)
    assert not key.active(NOW + 86_400)
    new = keys.rotate_key(store, key.key_id, "grace", NOW + 10, grace_seconds=60)
    with store.transaction() as tx:
        old = tx.keys.get(key.key_id)
    assert old is not None
    assert (old.active(NOW + 69), old.active(NOW + 70)) == (True, False)
    assert (new.key.owner, new.key.role, new.key.expires_at) == ("ada", Role.VIEWER, NOW + 10 + 86_400)
    assert new.secret != made.secret
    with pytest.raises(UsageError, match="revoked or expired"):
        keys.rotate_key(store, key.key_id, "grace", NOW + 100)


def test_no_secret_is_stored_shown_or_audited(store: InMemoryStore, tmp_path) -> None:  # type: ignore[no-untyped-def]
    admin = key_for(store, Role.ADMIN)
    with client(store, admin, tmp_path) as caller:
        made = caller.post("/api/v1/keys", json={"owner": "ada", "role": "viewer"}).json()
        listed = caller.get("/api/v1/keys").text
        audited = caller.get("/api/v1/audit/*").text
        kept = (tmp_path / "keys.json").read_text()
    assert made["secret"].startswith(f"cnry_{made['key_id']}_")
    for text in (listed, audited, kept, repr(store.state)):
        assert made["secret"] not in text
        assert made["secret"].split("_", 2)[2] not in text
    assert keys.digest_of(made["secret"]) not in listed + audited
    assert oct((tmp_path / "keys.json").stat().st_mode & 0o777) == "0o600"


class Away:
    """A store that does not answer."""

    def transaction(self):  # type: ignore[no-untyped-def]
        raise UnreachableError("the database does not answer")


def test_keys_open_while_the_database_is_away_also_after_a_restart(store: InMemoryStore, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A3.19: authentication comes from the file of digests."""
    secret = key_for(store, Role.OPERATOR)
    with client(store, secret, tmp_path):
        pass
    with client(Away(), secret, tmp_path) as caller:  # type: ignore[arg-type]
        assert caller.get("/healthz").json()["auth"] == "keys"
        assert caller.get("/api/v1/rollouts").status_code == 503, "let in, but the store is away"
        assert caller.get("/api/v1/rollouts", headers=bearer("wrong")).status_code == 401
        assert caller.get("/api/v1/keys").status_code == 403


def test_without_a_word_on_keys_nobody_is_let_in(tmp_path) -> None:  # type: ignore[no-untyped-def]
    for text in (None, "not JSON", '{"keys": [{"role": "emperor"}]}', "[]"):
        if text is not None:
            (tmp_path / "keys.json").write_text(text)
        with client(Away(), home=tmp_path) as caller:  # type: ignore[arg-type]
            assert caller.get("/healthz").json()["auth"] == "unknown"
            assert caller.get("/api/v1/rollouts").status_code == 503
            assert caller.get("/api/v1/rollouts", headers=bearer("x")).status_code == 503


def test_the_break_glass_key_kills_and_reads_and_nothing_else(store: InMemoryStore, tmp_path) -> None:  # type: ignore[no-untyped-def]
    key_for(store, Role.ADMIN)
    (tmp_path / "break-glass.json").write_text(f'{{"digest": "{keys.digest_of("in case of fire")}"}}')
    with client(store, "in case of fire", tmp_path) as caller:
        assert caller.get("/api/v1/rollouts").status_code == 200
        assert caller.post("/api/v1/routes/math/unkill", json={"reason": "x"}).status_code == 403
        assert caller.get("/api/v1/keys").status_code == 403
        killed = caller.post("/api/v1/routes/math/kill", json={"reason": "fire"})
        assert (killed.status_code, killed.json()["killed"]) == (200, True)
    with store.transaction() as tx:
        assert tx.audit.list("math", 1)[0]["actor"] == "break-glass"


def test_without_keys_this_machine_may_do_everything_and_the_service_says_so(store: InMemoryStore) -> None:
    with client(store) as caller:
        assert caller.get("/healthz").json()["auth"] == "none"
        assert caller.get("/api/v1/keys").status_code == 200
        assert caller.get("/api/v1/keys", headers=bearer("unknown")).status_code == 401


def test_beyond_this_machine_a_key_is_needed(store: InMemoryStore) -> None:
    for host in ("127.0.0.1", "localhost", "::1", "[::1]"):
        notes = Notes()
        ring = KeyRing(store, notes)
        ring.listen_on(host)
        for _ in range(2):
            ring.refresh()
        assert (ring.mode, [name for name, _ in notes.seen]) == (Mode.NONE, ["auth_none"])
    for host in ("0.0.0.0", "::", "10.0.0.1", "canary.example.org"):
        ring = KeyRing(store, Notes())
        with pytest.raises(UsageError, match="without an API key"):
            ring.listen_on(host)
        assert ring.mode is Mode.KEYS, "and whoever goes on regardless lets nobody in"
    key_for(store, Role.ADMIN)
    KeyRing(store, Notes()).listen_on("0.0.0.0")


def test_beyond_this_machine_an_outage_at_start_opens_nothing(store: InMemoryStore) -> None:
    class Returning:
        away = True

        def transaction(self):  # type: ignore[no-untyped-def]
            if self.away:
                raise UnreachableError("the database does not answer")
            return store.transaction()

    returning = Returning()
    ring = KeyRing(returning, Notes())
    ring.listen_on("0.0.0.0")
    assert ring.mode is Mode.UNKNOWN
    returning.away = False
    ring.refresh()
    assert ring.mode is Mode.KEYS


def test_the_last_key_revoked_does_not_open_the_service(store: InMemoryStore) -> None:
    made = keys.create_key(store, "ada", Role.ADMIN, "tests", NOW)
    keys.revoke_key(store, made.key.key_id, "ada", NOW + 1)
    with client(store) as caller:
        assert caller.get("/api/v1/rollouts").status_code == 401


def test_the_actor_is_the_key_s_owner(store: InMemoryStore) -> None:
    """A3.27: nobody acts under another's name."""
    secret = key_for(store, Role.OPERATOR, "ada")
    with client(store, secret) as caller:
        lie = caller.post("/api/v1/routes/math/kill", json={"reason": "x", "actor": "grace"})
        assert (lie.status_code, lie.json()["where"]) == (400, "/actor")
        assert caller.post("/api/v1/routes/math/kill", json={"reason": "x"}).status_code == 200
    with store.transaction() as tx:
        assert tx.audit.list("math", 1)[0]["actor"] == "ada"
