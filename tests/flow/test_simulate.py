"""On a real (tiny) engine: replays under other policies, scheduled runs, and strata that the flag leaves out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from canary import wiring
from canary.cli.policy import warnings_of
from canary.domain.errors import NotFoundError, UsageError
from canary.domain.pairs import Arm, Generation, Timing
from canary.domain.policy import Policy
from canary.domain.traffic import Stratum
from canary.flow import arms
from canary.flow.attempt import engine_of, locked_rollout
from canary.flow.ports import ArmRequest, ShadowEngine, Store
from canary.flow.shadow_runs import open_due
from canary.flow.tools import simulate as module
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.tools.simulate import simulate
from canary.flow.walk import shadow
from canary.flow.walk.assess import assess
from canary.flow.walk.control import tick
from canary.flow.walk.mirror import accept
from canary.inmemory import InMemoryStore
from canary.telemetry import SilentObserver
from tests.flow import tiny_walk
from tests.flow.tiny_walk import ROUTE

QUIET = SilentObserver()
DAY = 1_704_153_600.0  # 2 January 2024, 00:00 UTC


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_walk.model_dir(tmp_path_factory.mktemp("models"))


class Steady:
    """The engine with a clock of its own, so that no test hangs on the machine's: the candidate takes half the time."""

    def __init__(self, engine: ShadowEngine) -> None:
        self.info, self.engine, self.calibrating = engine.info, engine, True

    def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> Sequence[Generation]:
        self.engine.calibrating = self.calibrating
        return self.engine.generate(requests, arm)

    def time_block(self, requests: Sequence[ArmRequest], arm: Arm) -> Timing:
        return Timing(0.1, 2.1 if arm is Arm.BASELINE else 1.1, 12 * len(requests), len(requests))


@pytest.fixture(scope="module")
def engine(target: Path) -> ShadowEngine:
    return Steady(wiring.open_engine(tiny_walk.policy(target), threads=1))


def changed(target: Path, old: str = "", new: str = "") -> Policy:
    text = tiny_walk.policy_text(target, control_rate=0.2)
    assert old in text
    return load_text(text.replace(old, new, 1) if old else text)


def begin(policy: Policy, engine: ShadowEngine, greedy: int, sampled: int) -> Store:
    """A store with a rollout in shadow and mirrored prompts, the greedy ones first."""
    store = InMemoryStore()
    apply_policy(store, policy, dump(policy), DAY - 9_000)
    shadow.announce(store, ROUTE, engine.info, DAY - 9_000)
    cold = tiny_walk.prompts(greedy, 0.0)
    warm = [replace(p, request_id=f"warm-{p.request_id}") for p in tiny_walk.prompts(sampled, 1.0)]
    accept(store, [p for both in itertools.zip_longest(cold, warm) for p in both if p is not None], DAY - 8_000)
    return store


def once(store: Store, engine: ShadowEngine, now: float) -> int:
    return shadow.shadow_once(store, ROUTE, engine, worker="w", clock=lambda: now, observer=QUIET)


@pytest.fixture(scope="module")
def walked(target: Path, engine: ShadowEngine) -> Store:
    """A route after forty requests, decided on after every batch."""
    store = begin(changed(target), engine, 20, 20)
    for now in itertools.count(DAY, 20.0):
        if not once(store, engine, now):
            break
        tick(store, ROUTE, now, QUIET)
    return store


def written(store: Store) -> str:
    assert isinstance(store, InMemoryStore)
    return repr(store.state)


def test_the_same_policy_gives_the_very_evidence_and_decisions_back(target: Path, walked: Store) -> None:
    """A3.24: what is simulated is what production does, to the bit."""
    before = written(walked)
    found = simulate(walked, changed(target), ROUTE)
    assert found.same
    assert [(m.at, m.folded, m.kind, m.reason) for m in found.would] == [(m.at, m.folded, m.kind, m.reason) for m in found.was]
    assert (found.pairs, found.unreadable) == (40, 0)
    assert written(walked) == before, "nothing is written"
    with walked.transaction() as tx:
        rollout = locked_rollout(tx, ROUTE)
        record = dict(tx.evidence.get(ROUTE, rollout.epoch, rollout.attempt) or {})
        replay = module._Replay(tx, changed(target), changed(target), rollout, engine_of(record["engine"]))  # type: ignore[arg-type]
        assert list(replay.moments())
        assert json.dumps(replay._state.to_json()["battery"]) == json.dumps(record["battery"])
        assert json.dumps(replay._state.to_json()["control"]) == json.dumps(record["control"])


def test_another_policy_decides_otherwise_and_says_when(target: Path, walked: Store) -> None:
    """A3.24: tried on history before it is enabled."""
    strict = simulate(walked, changed(target, "acceptance_floor: 0.01", "acceptance_floor: 0.999"), ROUTE)
    assert not strict.same
    worse = next(m for m in strict.would if m.reason == "not_worth_it")
    assert "acceptance" in worse.sentence
    assert "0.999" in worse.sentence
    assert DAY <= worse.at <= DAY + 400
    assert all(m.weight == 0 for m in strict.would)


def test_what_cannot_be_replayed_is_refused(target: Path, walked: Store) -> None:
    with pytest.raises(UsageError, match="subject"):
        simulate(walked, changed(target, "num_speculative_tokens: 3", "num_speculative_tokens: 2"), ROUTE)
    with pytest.raises(NotFoundError, match="attempts that have: 1"):
        simulate(walked, changed(target), ROUTE, attempt=2)


def test_a_scheduled_route_is_run_inside_its_window_alone(target: Path, engine: ShadowEngine) -> None:
    nightly = 'schedule: {cron: "0 3 * * *", max_requests: 6, max_minutes: 30}, '
    policy = changed(target, "shadow: {", f"shadow: {{{nightly}")
    assert len(warnings_of(policy)) == len(warnings_of(changed(target))) + 1, "evidence goes stale between two nights"
    store, three = begin(policy, engine, 10, 0), DAY + 3 * 3600
    assert once(store, engine, DAY) == 0
    open_due(store, three + 5)
    assert [once(store, engine, three + 10)] == [4]
    assess(store, ROUTE, three + 11)
    assert [once(store, engine, three + 12) for _ in range(2)] == [2, 0]
    open_due(store, three + 86_400)
    assert once(store, engine, three + 86_400 + 2) == 4


def test_a_stratum_that_the_flag_leaves_out_is_run_untimed_and_counts_beside(target: Path, engine: ShadowEngine) -> None:
    text = tiny_walk.policy_text(target).replace("gates:\n", "gates:\n  strata: {sampled: {mode: observe, why: too rare}}\n", 1)
    policy = load_text(text.replace("shadow: {", "match: {strata: [greedy]}\nshadow: {", 1))
    assert policy.left_out == {Stratum.SAMPLED}
    store, alone = begin(policy, engine, 12, 12), begin(policy, engine, 12, 0)
    for each in (store, alone):
        for now in itertools.count(DAY, 20.0):
            if not once(each, engine, now):
                break
            assess(each, ROUTE, now)
    found, other = (assess(each, ROUTE, DAY + 500) for each in (store, alone))
    assert found is not None
    assert other is not None
    assert (found.folded, found.num_pairs, found.num_failed) == (24, 12, 0)
    mine, same = ({g.gate: (g.verdict, g.n) for g in each.gates} for each in (found, other))
    pooled = ("acceptance", "speed", "ttft", "errors", "baseline", "completeness", "losslessness")
    assert {name: mine[name] for name in pooled} == {name: same[name] for name in pooled}
    assert {*mine} - {*same} >= {"losslessness_sampled", "bank_certificate"}
    with store.transaction() as tx:
        rollout = locked_rollout(tx, ROUTE)
        pairs = tx.pairs.page(ROUTE, rollout.epoch, rollout.attempt, after=-1, limit=99)
    assert {p.stratum for p in pairs if p.candidate_timing is not None} == {Stratum.GREEDY}
    batch = policy.shadow.batch_size
    drawn = [arms.order(pairs[at // batch * batch].pair_id)[0] for at in range(len(pairs))]
    assert [p.first for p in pairs] == drawn, "one order for a batch, left out or not"
