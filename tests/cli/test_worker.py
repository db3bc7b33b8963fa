"""`canary worker`: no broken model, other engine or absent database stops a route that can run; a broken route alone is an error.

Engines are shared by what they load and dropped when nobody pins them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from canary.cli import worker
from canary.domain.errors import ModelError, UnreachableError
from canary.domain.policy import Gates, Policy
from canary.domain.rollout import Rollout
from canary.flow.ports import ShadowEngine, Transaction
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.commands import kill
from canary.flow.walk.mirror import accept
from canary.flow.walk.shadow import announce, shadow_once
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
    monkeypatch.setattr(worker, "RETRY_SECONDS", 3600.0)  # a slow machine would give the broken route another try meanwhile
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


def test_a_broken_route_named_alone_is_an_error_whoever_else_is_there(target: Path) -> None:
    with pytest.raises(ModelError):
        worker._loop(store_of(target, "broken", "tiny"), OneBroken(1, Noted("")), ["broken", "broken"], "w", Noted(""))


@pytest.mark.parametrize("only", [None, ["broken", "tiny"]])
def test_a_broken_route_rests_even_while_the_others_do(target: Path, only: list[str] | None) -> None:
    store, noted = store_of(target, "broken", "tiny"), Noted("route_failed")
    kill(store, "tiny", "a test", "tester", 1.0)
    with pytest.raises(KeyboardInterrupt):
        worker._loop(store, OneBroken(1, noted), only, "w", noted)
    assert [facts["route"] for facts in noted.of("route_failed")] == ["broken"]


def test_routes_share_an_engine_by_what_it_loads_and_leave_none_behind(target: Path) -> None:
    noted = Noted("")
    engines = worker.Engines(1, noted)
    one, two = tiny_walk.policy(target, route="one"), tiny_walk.policy(target, route="two")
    shared = engines.of(one)
    assert engines.of(two) is shared
    assert engines.of(replace(one, gates=Gates(), content_hash="other margins")) is shared
    longer = tiny_walk.policy(target, route="one", max_tokens=16)
    assert engines.of(longer) is not shared
    assert engines.of(two) is shared
    assert len(noted.of("engine_ready")) == 2
    engines.keep(["one"])
    assert engines.of(longer) is not shared
    assert engines.of(two) is not shared
    assert len(noted.of("engine_ready")) == 3


def test_engines_of_routes_that_stop_are_dropped(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, noted = store_of(target, "one", "two"), Noted("")
    engines, held = worker.Engines(1, noted), []

    def idle(_: float) -> None:
        held.append(sorted(engines._pinned))
        kill(store, ["one", "two"][len(held) - 1], "a test", "tester", 1.0)
        if len(held) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(worker.time, "sleep", idle)
    with pytest.raises(KeyboardInterrupt):
        worker._loop(store, engines, None, "w", noted)
    assert held == [["one", "two"], ["two"]]


def test_the_older_of_two_engines_rests(target: Path) -> None:
    store, noted = store_of(target, "tiny"), Noted("route_failed")
    engines = worker.Engines(1, noted)
    info = engines.of(tiny_walk.policy(target)).info
    announce(store, "tiny", info, 1.0)
    newer = announce(store, "tiny", replace(info, fingerprint="f" * 32), 2.0)
    with pytest.raises(KeyboardInterrupt):
        worker._loop(store, engines, None, "w", noted)
    (failed,) = noted.of("route_failed")
    assert (failed["route"], failed["code"]) == ("tiny", "conflict")
    with store.transaction() as tx:
        assert tx.rollouts.get("tiny") == newer


def test_a_policy_applied_meanwhile_is_shadowed_by_its_own_engine(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, noted = store_of(target, "tiny"), Noted("")
    idles: list[float] = []

    def idle(seconds: float) -> None:
        idles.append(seconds)
        if len(idles) == 2:
            raise KeyboardInterrupt
        changed = tiny_walk.policy(target, max_tokens=5)
        apply_policy(store, changed, tiny_walk.policy_text(target, max_tokens=5), 1.0)

    monkeypatch.setattr(worker.time, "sleep", idle)
    with pytest.raises(KeyboardInterrupt):
        worker._loop(store, worker.Engines(1, noted), None, "w", noted)
    assert (len(noted.of("engine_ready")), noted.of("route_failed")) == (2, [])
    with store.transaction() as tx:
        rollout = tx.rollouts.get("tiny")
        assert rollout is not None
        pairs = [tx.pairs.get(i) for i in tx.pairs.ids("tiny", rollout.epoch, 2)]
    assert rollout.attempt == 2
    assert [len(p.baseline.token_ids) for p in pairs if p] == [5] * 4


def test_a_policy_applied_after_the_announcement_is_not_run_by_the_old_engine(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, noted = store_of(target, "tiny"), Noted("idle")
    ran: list[int] = []

    def overtaken(*given: Any, policy_hash: str) -> Rollout:
        found = announce(*given, policy_hash=policy_hash)
        if not ran:
            changed = apply_policy(
                store, tiny_walk.policy(target, max_tokens=5), tiny_walk.policy_text(target, max_tokens=5), 1.0
            )
            announce(*given, policy_hash=changed.policy_hash)
        return found

    def counted(*given: Any, **named: Any) -> int:
        ran.append(shadow_once(*given, **named))
        return ran[-1]

    monkeypatch.setattr(worker, "announce", overtaken)
    monkeypatch.setattr(worker, "shadow_once", counted)
    monkeypatch.setattr(worker.time, "sleep", lambda _: noted.note("idle") if len(ran) > 1 else None)
    with pytest.raises(KeyboardInterrupt):
        worker._loop(store, worker.Engines(1, noted), None, "w", noted)
    assert ran == [0, 4, 0]
    assert len(noted.of("engine_ready")) == 2


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


def test_engines_outlive_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
    class Away(InMemoryStore):
        @contextmanager
        def transaction(self) -> Iterator[Transaction]:
            raise UnreachableError("gone")
            yield

    noted = Noted("waited")
    engines = worker.Engines(1, noted)
    before = engines.of(tiny_walk.policy(target))
    monkeypatch.setattr(worker.time, "sleep", lambda _: noted.note("waited"))
    with pytest.raises(KeyboardInterrupt):
        worker._loop(Away(), engines, None, "w", noted)
    assert engines.of(tiny_walk.policy(target)) is before
