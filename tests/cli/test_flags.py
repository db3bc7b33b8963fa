"""`canary flags`: a document written from the database or a running API, and proven or refused by exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canary.cli import flags
from canary.flow.tools.signed import SigningKey, encode_public
from canary.inmemory import InMemoryStore
from canary.store.signing_key import load_or_create
from canary.wiring import settings, store_on
from tests.api.served import add_route, call, serving, set_weight


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CANARY_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    yield tmp_path / "home"  # type: ignore[misc]
    settings.cache_clear()


def run(*words: str):  # type: ignore[no-untyped-def]
    return CliRunner().invoke(flags.app, list(words))


def test_a_document_from_the_database_is_proven_by_the_homes_key(
    database: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_DATABASE_URL", database)
    settings.cache_clear()
    with store_on(database) as store:
        add_route(store, "math")
        set_weight(store, "math", 500)
    out = tmp_path / "flags.json"
    assert run("snapshot", "--out", str(out)).exit_code == 0
    key = run("key").stdout.strip()
    assert key == encode_public(load_or_create(home).public)
    good = run("verify", str(out), "--key", key, "--max-age", "3600")
    assert (good.exit_code, good.stdout.split(",")[0]) == (0, "good: version 2")
    (tmp_path / "pub").write_text(key + "\n")
    assert run("verify", str(out), "--key", str(tmp_path / "pub")).exit_code == 0
    body = json.loads(out.read_text())
    out.write_text(json.dumps(body | {"payload": body["payload"].replace("500", "10000")}))
    for words in (("--key", key), ("--key", encode_public(SigningKey(bytes(32)).public)), ("--key", "nonsense")):
        refused = run("verify", str(out), *words)
        assert refused.exception is not None
        assert refused.exception.exit_code == 2  # type: ignore[attr-defined]


def test_a_document_from_a_running_api(tmp_path: Path) -> None:
    store = InMemoryStore()
    add_route(store, "math")
    with serving(store) as url:
        written = run("snapshot", "--url", url)
        key = str(call(f"{url}/api/v1/flags/key").json["public_key"])
    (tmp_path / "flags.json").write_text(written.stdout)
    assert run("verify", str(tmp_path / "flags.json"), "--key", key).exit_code == 0
    gone = run("snapshot", "--url", "http://127.0.0.1:9")
    assert gone.exception is not None
    assert gone.exception.exit_code == 5  # type: ignore[attr-defined]
