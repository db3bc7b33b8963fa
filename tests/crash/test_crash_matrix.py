"""SIGKILL of the worker, the API, Postgres and all of them, at seeded moments of a run on a tiny model in fp32.

Afterwards every accepted prompt is paired exactly once, the evidence equals one uninterrupted fold bit for bit, and the tokens
are those of a run that nobody disturbed.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from canary import wiring
from canary.domain.errors import CanaryError
from canary.domain.pairs import Arm
from canary.flow.ports import Store
from canary.flow.tools.apply import apply_policy
from canary.store.embedded import EmbeddedPostgres
from canary.store.unit_of_work import PostgresStore
from tests.crash.rig import Rig, wait_for
from tests.flow import tiny_walk
from tests.flow.test_walk import begin, folded, refolded, run_all
from tests.flow.tiny_walk import ROUTE

COUNT = 24
PARTS = ("worker", "api", "postgres", "all")
TEMPERATURE = 1.0
CONTROL_RATE = 0.3  # many A/A pairs, so that every kind of claim is killed

Tokens = dict[str, tuple[tuple[int, ...], tuple[int, ...]]]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_walk.model_dir(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def undisturbed(target: Path) -> Tokens:
    """Both arms' tokens by pair id, from a run in memory."""
    engine = wiring.open_engine(tiny_walk.policy(target), threads=1)
    store, rollout = begin(target, engine, COUNT, temperature=TEMPERATURE, control_rate=CONTROL_RATE)
    run_all(store, engine, itertools.count(1_000.0).__next__)
    return tokens_of(store, rollout.epoch)


def tokens_of(store: Store, epoch: str) -> Tokens:
    with store.transaction() as tx:
        pairs = [tx.pairs.get(i) for i in tx.pairs.ids(ROUTE, epoch, 1)]
    return {p.pair_id: (p.baseline.token_ids, p.candidate.token_ids) for p in pairs if p}


@pytest.fixture
def rig(tmp_path: Path, target: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "home")
    with wiring.open_store(wiring.settings().model_copy(update={"home": made.home, "database_url": None})) as store:
        text = tiny_walk.policy_text(target, lease="2s", control_rate=CONTROL_RATE)
        apply_policy(store, tiny_walk.policy(target, lease="2s", control_rate=CONTROL_RATE), text, time.time())
    made.start()
    yield made
    made.stop()


def done_count(store: Store) -> int:
    """Pairs stored so far; -1 while the database is away."""
    with suppress(CanaryError), store.transaction() as tx:
        rollout = tx.rollouts.get(ROUTE)
        return len(tx.pairs.ids(ROUTE, rollout.epoch, rollout.attempt)) if rollout else 0
    return -1


def _disturbed(rig: Rig, part: str, seed: int, target: Path, undisturbed: Tokens) -> None:
    moment = random.Random(f"{part}{seed}")
    at_post, at_pairs = moment.randrange(COUNT), moment.randrange(COUNT)
    while_posting = moment.random() < 0.3
    store = PostgresStore(EmbeddedPostgres(rig.home).url)
    for i in range(COUNT):
        if while_posting and i == at_post:
            rig.kill(part)
        wait_for(f"request {i}", lambda i=i: rig.post(ROUTE, f"r{i}", tiny_walk.body(i, TEMPERATURE)))
    if not while_posting:
        wait_for("the moment", lambda: done_count(store) >= at_pairs)
        time.sleep(moment.random() * 0.3)
        rig.kill(part)
    wait_for("all pairs", lambda: done_count(store) == COUNT)
    wait_for("the fold", lambda: _all_folded(store))
    with store.transaction() as tx:
        rollout = tx.rollouts.get(ROUTE)
        assert rollout is not None
        assert tx.prompts.count(ROUTE) == COUNT
        assert tx.claims.open_count(ROUTE, rollout.epoch, rollout.attempt) == 0
        ids = tx.pairs.ids(ROUTE, rollout.epoch, rollout.attempt)
        assert len(ids) == len(set(ids)) == COUNT
        assert {p.first for p in (tx.pairs.get(i) for i in ids) if p} <= set(Arm)
    assert tokens_of(store, rollout.epoch) == undisturbed
    assert json.dumps(folded(store, rollout)) == json.dumps(refolded(store, rollout, target))
    store.close()


def _all_folded(store: Store) -> bool:
    with suppress(CanaryError), store.transaction() as tx:
        rollout = tx.rollouts.get(ROUTE)
        record = rollout and tx.evidence.get(ROUTE, rollout.epoch, rollout.attempt)
        return bool(record and record["battery"] and record["battery"]["folded"] == COUNT)  # type: ignore[call-overload]
    return False


@pytest.mark.parametrize("part", PARTS)
def test_a_killed_part_loses_nothing(rig: Rig, part: str, target: Path, undisturbed: Tokens) -> None:
    _disturbed(rig, part, 0, target, undisturbed)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("part", PARTS)
def test_a_killed_part_loses_nothing_at_any_moment(rig: Rig, part: str, seed: int, target: Path, undisturbed: Tokens) -> None:
    _disturbed(rig, part, seed, target, undisturbed)
