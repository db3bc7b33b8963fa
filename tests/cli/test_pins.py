"""`canary flags pin | unpin | pins` on a store in memory: what is printed, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from canary.cli import flags, pins
from canary.domain.errors import CanaryError
from canary.domain.rollout import State
from canary.inmemory import InMemoryStore
from tests.api.served import add_route


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> InMemoryStore:
    made = InMemoryStore()
    add_route(made, "math")
    with made.transaction() as tx:
        rollout = tx.rollouts.get("math")
        assert rollout is not None
        tx.rollouts.put(replace(rollout, state=State.CANARY, stage=1, version=rollout.version + 1))
        tx.commit()

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[InMemoryStore]:
        yield made

    monkeypatch.setattr(pins, "open_store", opened)
    return made


def run(*words: str):  # type: ignore[no-untyped-def]
    return CliRunner().invoke(flags.app, list(words))


def test_pinned_listed_and_unpinned(store: InMemoryStore) -> None:
    assert json.loads(run("pins", "--json").stdout) == {"pins": []}
    done = run("pin", "math", "tenant/1", "candidate", "--reason", "a friend", "--actor", "ada", "--expires", "12h", "--json")
    found = json.loads(done.stdout)
    assert (found["unit"], found["variant"], found["in_force"], found["actor"]) == ("tenant/1", "candidate", True, "ada")
    assert found["expires_at"] > found["pinned_at"]
    said = run("pin", "math", "tenant-2", "baseline", "--reason", "never", "--actor", "ada").stdout
    assert said == "tenant-2 gets the baseline on math until it is unpinned.\n"
    assert [pin["unit"] for pin in json.loads(run("pins", "math", "--json").stdout)["pins"]] == ["tenant-2", "tenant/1"]
    table = run("pins").stdout
    assert "tenant/1" in table
    assert "a friend" in table
    assert (
        run("unpin", "math", "tenant/1", "--reason", "over").stdout == "tenant/1 is no longer pinned to the candidate on math.\n"
    )
    assert [pin["unit"] for pin in json.loads(run("pins", "--json").stdout)["pins"]] == ["tenant-2"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("pin", "nowhere", "u", "baseline", "--reason", "x"), 2),
        (("pin", "math", "u", "baseline", "--reason", " "), 2),
        (("pin", "math", "u", "baseline", "--reason", "x", "--expires", "soon"), 2),
        (("pin", "math", "u", "baseline", "--reason", "x", "--expires", "9999d"), 2),
        (("unpin", "math", "u", "--reason", "x"), 2),
        (("pins", "nowhere"), 2),
    ],
)
def test_exit_codes(store: InMemoryStore, words: tuple[str, ...], code: int) -> None:
    error = run(*words).exception
    assert isinstance(error, CanaryError)
    assert error.exit_code == code


def test_a_route_in_shadow_pins_nobody_to_the_candidate(store: InMemoryStore) -> None:
    add_route(store, "creative")
    error = run("pin", "creative", "u", "candidate", "--reason", "x").exception
    assert isinstance(error, CanaryError)
    assert error.exit_code == 5
    assert run("pin", "creative", "u", "speculative", "--reason", "x").exit_code == 2
