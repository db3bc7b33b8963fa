"""`canary worker`: one route's broken model stops neither the others nor the database's return, and alone it is an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from canary.cli import worker
from canary.domain.errors import ModelError, UnreachableError
from canary.domain.policy import Policy
from canary.flow.ports import ShadowEngine, Transaction
from canary.flow.tools.apply import apply_policy
from canary.flow.walk.mirror import accept
from canary.inmemory import InMemoryStore
from tests.flow import tiny_walk


class Noted:
    """An observer that remembers, and ends the endless loop."""

    def __init__(self, last: str) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []
        self._last = last

    def note(self, event: str, **facts: object) -> None:
        self.events.append((event, facts))
        if event == self._last:
            raise KeyboardInterrupt

    def of(self, event: str) -> list[dict[str, object]]:
        return [facts for name, facts in self.events if name == event]


class OneBroken(worker.Engines):
    """Engines of which the route `broken` has none."""

    def of(self, policy: Policy) -> ShadowEngine:
        if policy.route == "broken":
            raise ModelError("the model is not there", where="subject.target")
        return super().of(policy)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny_walk.model_dir(tmp_path)


def store_of(target: Path, *routes: str) -> InMemoryStore:
    store = InMemoryStore()
    for route in routes:
        apply_policy(store, tiny_walk.policy(target, route=route), tiny_walk.policy_text(target, route=route), 0.0)
        accept(store, [replace(p, source=route) for p in tiny_walk.prompts(4, 1.0, route=route)], 0.0)
    return store


def test_a_broken_route_does_not_stop_the_others(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, noted = store_of(target, "broken", "tiny"), Noted("idle")
    monkeypatch.setattr(worker.time, "sleep", lambda _: noted.note("idle"))
    with pytest.raises(KeyboardInterrupt):
        worker._loop(store, OneBroken(1, noted), None, "w", noted)
    (failed,) = noted.of("route_failed")
    assert (failed["route"], failed["code"]) == ("broken", "model")
    assert [facts["route"] for facts in noted.of("engine_ready")] == ["tiny"]
    with store.transaction() as tx:
        rollout = tx.rollouts.get("tiny")
        assert rollout is not None
        assert len(tx.pairs.ids("tiny", rollout.epoch, rollout.attempt)) == 4


def test_a_broken_route_alone_is_an_error(target: Path) -> None:
    with pytest.raises(ModelError):
        worker._loop(store_of(target, "broken"), OneBroken(1, Noted("")), None, "w", Noted(""))


def test_a_database_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(InMemoryStore):
        @contextmanager
        def transaction(self) -> Iterator[Transaction]:
            raise UnreachableError("gone")
            yield

    noted = Noted("waited")
    monkeypatch.setattr(worker.time, "sleep", lambda _: noted.note("waited"))
    with pytest.raises(KeyboardInterrupt):
        worker._loop(Away(), worker.Engines(1, noted), None, "w", noted)
    assert [facts["code"] for facts in noted.of("database_away")] == ["unreachable"]
