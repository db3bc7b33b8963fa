"""`canary keys` and `canary audit` on a store in memory, as people type them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from canary.cli import app, audit, keys
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, add_route, decide_now


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InMemoryStore:
    made = InMemoryStore()
    add_route(made, "math", epoch="")

    @contextmanager
    def opened(*given: object, **more: object) -> Iterator[InMemoryStore]:
        yield made

    for module in (keys, audit):
        monkeypatch.setattr(module, "open_store", opened)
    monkeypatch.setattr(keys, "settings", lambda: SimpleNamespace(home=tmp_path))
    return made


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def loaded(*words: str) -> dict[str, object]:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_a_key_s_life(store: InMemoryStore) -> None:
    made = loaded("keys", "create", "--owner", "ada", "--role", "operator", "--route", "math", "--scope", "kill", "--days", "7")
    assert (made["role"], made["routes"], made["scopes"]) == ("operator", ["math"], ["kill"])
    new = loaded("keys", "rotate", str(made["key_id"]), "--grace", "0", "--actor", "grace")
    listed = {k["key_id"]: k["active"] for k in loaded("keys", "list")["keys"]}  # type: ignore[attr-defined]
    assert listed == {made["key_id"]: False, new["key_id"]: True}
    assert loaded("keys", "revoke", str(new["key_id"]))["active"] is False
    table = run("keys", "list").stdout
    assert "revoked" in table
    assert str(made["secret"]) not in table
    assert [e["actor"] for e in loaded("audit", "*")["events"]][1:3] == ["grace", "grace"]  # type: ignore[attr-defined]


def test_wrong_keys_are_usage_errors(store: InMemoryStore) -> None:
    assert run("keys", "create", "--owner", "ada", "--role", "emperor").exit_code == 2
    for words in (("create", "--owner", " ", "--role", "viewer"), ("revoke", "0123456789ab"), ("rotate", "0123456789ab")):
        assert getattr(run("keys", *words).exception, "exit_code", None) == 2, words
    assert store.state.keys == {}


def test_the_break_glass_key_is_kept_as_a_digest(store: InMemoryStore, tmp_path: Path) -> None:
    secret = str(loaded("keys", "break-glass")["secret"])
    path = tmp_path / "break-glass.json"
    assert secret not in path.read_text()
    assert json.loads(path.read_text())["digest"] == keys.keys.digest_of(secret)
    assert path.stat().st_mode & 0o077 == 0


def test_the_log_of_a_route(store: InMemoryStore) -> None:
    decide_now(store, "math", at=NOW)
    found = loaded("audit", "math")
    assert [e["kind"] for e in found["events"]] == ["decision", "policy"]  # type: ignore[attr-defined]
    assert found == loaded("audit", "show", "math")
    assert "not yet: 120 more requests" in run("audit", "math").stdout
    checked = loaded("audit", "verify")
    assert [(r["route"], r["ok"], r["events"]) for r in checked["routes"]] == [("math", True, 2)]  # type: ignore[attr-defined]
    assert "2 events hold" in run("audit", "verify", "math").stdout


def test_a_log_that_was_changed_fails(store: InMemoryStore) -> None:
    route, text = store.state.audit[0]
    store.state.audit[0] = (route, text.replace('"actor": "', '"actor": "not '))
    done = run("audit", "verify")
    assert done.exit_code == 1
    assert "BROKEN at event 1" in done.stdout
