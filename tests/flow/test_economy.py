"""`economy: restart` in the walk: a stage gathers its own speed and acceptance, and no losslessness bet notices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from canary import wiring
from canary.domain.evidence import Evidence, Verdict
from canary.domain.rollout import Rollout, State
from canary.flow.ports import ShadowEngine, Store
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import load_text
from canary.flow.walk import shadow
from canary.flow.walk.assess import assess
from canary.flow.walk.mirror import accept
from canary.inmemory import InMemoryStore
from canary.telemetry import SilentObserver
from tests.flow import tiny_walk
from tests.flow.test_control_arm import Harness
from tests.flow.tiny_walk import ROUTE

BEFORE, AFTER = 8, 4
RESTARTED = {"acceptance", "speed", "ttft", "ttft_tail"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_walk.model_dir(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def engine(target: Path) -> ShadowEngine:
    return wiring.open_engine(tiny_walk.policy(target), threads=1)


class Walk:
    """A route whose shadow has run `BEFORE` requests, in the hands of a test that moves it."""

    def __init__(self, target: Path, engine: ShadowEngine, economy: str) -> None:
        self.store: Store = InMemoryStore()
        self.engine = Harness(engine)
        self.clock: Iterator[float] = itertools.count(1_000.0)
        self.mirrored = 0
        text = tiny_walk.policy_text(target) + f"economy: {economy}\n"
        apply_policy(self.store, load_text(text), text, 0.0)
        shadow.announce(self.store, ROUTE, self.engine.info, 0.0)
        self.run(BEFORE)

    def run(self, count: int, *, folding: bool = True) -> None:
        """So many more requests, through the worker and, if wished, the fold."""
        accept(self.store, tiny_walk.prompts(self.mirrored + count, 1.0)[self.mirrored :], 0.0)
        self.mirrored += count
        while shadow.shadow_once(
            self.store, ROUTE, self.engine, worker="w", clock=self.clock.__next__, observer=SilentObserver()
        ):
            if folding or self.mirrored <= BEFORE:
                self.assessed()

    def move(self, stage: int, state: State) -> Rollout:
        with self.store.transaction() as tx:
            before = tx.rollouts.get(ROUTE)
            assert before is not None
            at = next(self.clock)
            tx.rollouts.put(after := replace(before, state=state, stage=stage, entered_at=at, version=before.version + 1))
            tx.commit()
        return after

    def assessed(self) -> Evidence:
        found = assess(self.store, ROUTE, next(self.clock))
        assert found is not None
        return found

    def record(self) -> dict[str, Any]:
        with self.store.transaction() as tx:
            rollout = tx.rollouts.get(ROUTE)
            assert rollout is not None
            found: Any = tx.evidence.get(ROUTE, rollout.epoch, rollout.attempt)
        return dict(found)


def counted(evidence: Evidence) -> dict[str, int]:
    return {g.gate: g.n for g in evidence.gates if g.gate in RESTARTED}


def test_a_stage_counts_its_own_requests_and_losslessness_goes_on_to_the_bit(target: Path, engine: ShadowEngine) -> None:
    walks = {economy: Walk(target, engine, economy) for economy in ("restart", "carry")}
    found = {}
    for economy, walk in walks.items():
        assert counted(walk.assessed())["speed"] == BEFORE
        walk.move(1, State.CANARY)
        entered = counted(walk.assessed())
        assert entered["speed"] == (0 if economy == "restart" else BEFORE)
        walk.run(AFTER)
        found[economy] = walk.assessed()
    assert counted(found["restart"])["speed"] == AFTER
    assert counted(found["carry"])["speed"] == BEFORE + AFTER
    records = {economy: walk.record() for economy, walk in walks.items()}
    assert records["restart"]["battery"] == records["carry"]["battery"], "every bet of the attempt, its peaks and its alarm"
    assert "economy" not in records["carry"]
    window = records["restart"]["economy"]
    assert (window["stage"], window["number"], window["start"]) == ("canary", 2, BEFORE)
    both = [{g.gate: g for g in found[economy].gates} for economy in ("restart", "carry")]
    assert {name for name in both[0] if both[0][name] != both[1][name]} == RESTARTED


def test_what_the_new_stage_still_needs_is_timed_again(target: Path, engine: ShadowEngine) -> None:
    walk = Walk(target, engine, "restart")
    walk.move(1, State.CANARY)
    before = len(walk.engine.timed)
    walk.run(AFTER, folding=False)  # nobody has assessed the stage yet: the worker opens the window where assess will
    assert len(walk.engine.timed) == before + 2 * AFTER
    assert counted(walk.assessed())["speed"] == AFTER


def test_a_held_stage_that_goes_on_keeps_its_window_and_the_next_one_opens_another(target: Path, engine: ShadowEngine) -> None:
    walk = Walk(target, engine, "restart")
    walk.move(1, State.CANARY)
    walk.assessed()
    walk.run(4)
    walk.move(1, State.HELD)
    walk.run(4)
    walk.move(1, State.CANARY)
    assert counted(walk.assessed())["speed"] == 8
    walk.move(2, State.FULL)
    full = walk.assessed()
    assert counted(full)["speed"] == 0
    speed = full.gate("speed")
    assert speed is not None
    assert speed.verdict is Verdict.NO_DATA
    assert walk.record()["economy"]["number"] == 3
