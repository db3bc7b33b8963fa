"""Live evidence in the walk: folded for the stage at hand, judged with its source, and followed by traffic as the table says."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from canary.domain.errors import ConflictError
from canary.domain.evidence import Evidence, GateEvidence, Source, Verdict
from canary.domain.observations import Observation
from canary.domain.pairs import Arm, DrafterKind
from canary.domain.rollout import Rollout, State
from canary.flow.attempt import engine_record
from canary.flow.live import LIVE_BATCH
from canary.flow.ports import EngineInfo
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.walk.assess import assess
from canary.flow.walk.control import tick
from canary.flow.walk.observe import observe
from canary.inmemory import InMemoryStore
from tests.flow.tiny_walk import policy_text

NOW = 1_700_000_000.0
INFO = EngineInfo("epoch", DrafterKind.ONE_HOT, 3, True, 100, {})
STAGES = """stages:
  - {name: shadow, weight: 0 %}
  - {name: canary, weight: 5 %, live: [errors, speed]}
  - {name: half, weight: 50 %, live: [errors, speed]}
  - {name: full, weight: 100 %, live: [acceptance]}
"""


class Notes:
    def note(self, event: str, **facts: object) -> None:
        pass


def made(stage: int, *, economy: str = "restart", full: str = "acceptance") -> InMemoryStore:
    """A route that has stood in a stage for a minute, with an engine that has announced itself."""
    text = policy_text(Path("target")).split("stages:")[0] + STAGES.replace("[acceptance]", f"[{full}]") + f"economy: {economy}\n"
    policy, store = load_text(text), InMemoryStore()
    apply_policy(store, policy, dump(policy), NOW - 3600)
    move(store, stage, NOW - 60)
    with store.transaction() as tx:
        record = {"engine": engine_record(INFO), "policy": policy.content_hash, "battery": None, "control": None, "last": None}
        tx.evidence.put("tiny", "epoch", 1, record)
        tx.commit()
    return store


def move(store: InMemoryStore, stage: int, at: float) -> Rollout:
    with store.transaction() as tx:
        before = tx.rollouts.get("tiny")
        assert before is not None
        state = (State.SHADOW, State.CANARY, State.CANARY, State.FULL)[stage]
        after = replace(before, state=state, stage=stage, epoch="epoch", entered_at=at, version=before.version + 1)
        tx.rollouts.put(after)
        tx.commit()
    return after


def seen(count: int, *, at: float, prefix: str = "o", candidate: dict[str, Any] | None = None, **both: Any) -> list[Observation]:
    """Requests of both variants in turn; `candidate` says what only the candidate's measured."""
    arms = (Arm.BASELINE, Arm.CANDIDATE)
    return [
        Observation("tiny", f"{prefix}{n}", arm, at, **(both | (candidate or {}) if arm is Arm.CANDIDATE else both))
        for n, arm in ((n, arms[n % 2]) for n in range(count))
    ]


def keep(store: InMemoryStore, observations: Iterable[Observation], now: float = NOW) -> None:
    found = list(observations)
    for start in range(0, len(found), 1000):
        observe(store, found[start : start + 1000], now)


def gates(store: InMemoryStore, now: float = NOW) -> dict[str, GateEvidence]:
    evidence = assess(store, "tiny", now)
    assert evidence is not None
    return {g.gate: g for g in evidence.gates if g.source is Source.LIVE}


def record(store: InMemoryStore) -> dict[str, Any]:
    with store.transaction() as tx:
        found: Any = tx.evidence.get("tiny", "epoch", 1)
        return dict(found)


OK = {"finish_reason": "stop", "seconds_per_token": 0.02}


def test_a_stage_has_the_gates_that_it_asks_for() -> None:
    for stage, names in ((0, []), (1, ["errors", "speed"]), (3, ["acceptance"])):
        store = made(stage)
        assert list(gates(store)) == names
        assert all(g.verdict is Verdict.NO_DATA for g in gates(store).values())


def test_observations_reach_their_gates() -> None:
    store = made(1)
    gates(store)
    keep(store, seen(200, at=NOW - 10, **OK))
    found = gates(store)
    assert found["errors"].verdict is Verdict.PASS
    assert found["errors"].n == 100
    assert found["speed"].verdict is Verdict.INCONCLUSIVE
    assert found["speed"].n == 81, "the centre's twenty baseline requests, and the candidate's until then, come first"
    assert found == gates(store), "the second assessment folds nothing twice"


def test_what_was_seen_before_the_attempt_is_not_folded() -> None:
    store = made(1)
    keep(store, seen(100, at=NOW - 10, **OK))
    assert gates(store)["errors"].n == 0
    keep(store, seen(100, at=NOW - 70, prefix="old", **OK))
    assert gates(store)["errors"].n == 0, "observed before the stage was entered"
    keep(store, seen(100, at=NOW - 10, prefix="new", **OK))
    assert gates(store)["errors"].n == 50


def test_live_errors_kill_and_a_slow_candidate_is_rolled_back() -> None:
    store = made(1)
    gates(store)
    keep(store, seen(200, at=NOW - 10, candidate={"finish_reason": "error"}, **OK))
    rollout, decision, _ = tick(store, "tiny", NOW, Notes())
    assert (decision.kind, decision.reason, rollout.killed) == ("kill", "live_errors", True)

    store = made(1)
    gates(store)
    dice = np.random.default_rng(1)
    slow = [
        replace(o, seconds_per_token=0.02 * float(dice.uniform(0.9, 1.1)) * (3.0 if o.arm is Arm.CANDIDATE else 1.0))
        for o in seen(400, at=NOW - 10, **OK)
    ]
    keep(store, slow)
    rollout, decision, _ = tick(store, "tiny", NOW, Notes())
    assert (decision.kind, decision.reason, rollout.state) == ("roll_back", "not_worth_it_live", State.ROLLED_BACK)
    assert decision.gate == "speed"
    with store.transaction() as tx:
        flag = tx.flags.get("tiny")
    assert flag is not None
    assert flag.weight == 0


@pytest.mark.parametrize("economy", ["restart", "carry"])
def test_a_new_stage_starts_again_unless_the_economy_is_carried(economy: str) -> None:
    store = made(1, economy=economy)
    gates(store)
    keep(store, seen(200, at=NOW - 10, **OK))
    before = gates(store)["speed"].n
    move(store, 2, NOW + 5)
    after = gates(store, NOW + 6)
    assert after["speed"].n == (before if economy == "carry" else 0)
    assert record(store)["live"]["state"]["tracks"]["errors"]["n"] == 100, "safety never restarts"
    keep(store, seen(40, at=NOW + 6, prefix="late", stage="half", **OK), NOW + 7)
    keep(store, seen(40, at=NOW + 6, prefix="lost", stage="canary", **OK), NOW + 7)
    assert gates(store, NOW + 8)["errors"].n == (120 if economy == "carry" else 20)


def test_the_shadow_carries_nothing() -> None:
    store = made(0, economy="carry")
    gates(store)
    keep(store, seen(100, at=NOW - 10, **OK))
    gates(store)
    move(store, 1, NOW)
    assert gates(store, NOW + 1)["speed"].n == 0


def test_any_split_of_the_observations_gives_the_same_record() -> None:
    dice = np.random.default_rng(2)
    many = [replace(o, seconds_per_token=float(dice.uniform(0.01, 0.03))) for o in seen(LIVE_BATCH + 300, at=NOW - 10, **OK)]
    at_once, bit_by_bit = made(1), made(1)
    for store in (at_once, bit_by_bit):
        gates(store)
    keep(at_once, many)
    for start in range(0, len(many), 90):
        keep(bit_by_bit, many[start : start + 90])
        gates(bit_by_bit)
    assert gates(at_once) == gates(bit_by_bit)
    assert json.dumps(record(at_once)["live"]) == json.dumps(record(bit_by_bit)["live"])


def test_a_foreign_engine_on_the_candidate_says_nothing_about_the_subject() -> None:
    store = made(1)
    gates(store)
    keep(store, seen(200, at=NOW - 10, candidate={"finish_reason": "error", "engine": "another"}, **OK))
    found = gates(store)["errors"]
    assert found.verdict is Verdict.NO_DATA
    assert record(store)["live"]["state"]["left_out"]["other_engine"] == 100


def test_silence_grows_stale_and_a_worker_without_live_traffic_writes_nothing() -> None:
    """A3.6, A5.5: old good samples are stale, not good."""
    store = made(1)
    gates(store)
    keep(store, seen(200, at=NOW - 10, **OK))
    gates(store)
    before = store.state.evidence
    found = gates(store, NOW + 4000)
    assert (found["errors"].verdict, found["errors"].reason) == (Verdict.NO_DATA, "stale")
    assert store.state.evidence == before


def test_evidence_of_another_version_is_refused() -> None:
    store = made(1)
    gates(store)
    with store.transaction() as tx:
        kept = record_of(tx.evidence.get("tiny", "epoch", 1))
        kept["live"]["state"]["version"] = 0
        tx.evidence.put("tiny", "epoch", 1, kept)
        tx.commit()
    with pytest.raises(ConflictError):
        assess(store, "tiny", NOW)


def record_of(found: Any) -> dict[str, Any]:
    return dict(found)


def test_every_gate_names_its_source_and_the_evidence_its_engine() -> None:
    store = made(1)
    gates(store)
    keep(store, seen(60, at=NOW - 10, **OK))
    evidence = assess(store, "tiny", NOW)
    assert isinstance(evidence, Evidence)
    assert (evidence.subject, evidence.engine) == ("epoch", "epoch")
    assert {g.source for g in evidence.gates} == {Source.SHADOW, Source.LIVE}


def test_errors_at_full_are_held_against_the_earlier_stages() -> None:
    """The canary records the baseline; at full only the candidate is left, and what it does there may still kill."""
    for failing, verdict in ((0, Verdict.PASS), (4, Verdict.FAIL)):
        store = made(2, full="errors, acceptance")
        gates(store)
        keep(store, seen(400, at=NOW - 30, **OK))
        gates(store)
        move(store, 3, NOW - 20)
        silent = gates(store)["errors"]
        assert (silent.verdict, silent.reason) == (Verdict.NO_DATA, "no_data")
        ends = [{"finish_reason": "error" if failing and n % failing == 0 else "stop"} for n in range(120)]
        keep(store, [Observation("tiny", f"f{n}", Arm.CANDIDATE, NOW - 10, **end) for n, end in enumerate(ends)])
        found = gates(store)["errors"]
        assert found.verdict is verdict, found.sentence
        assert found.details["earlier_baseline_requests"] == 200
        assert gates(store)["errors"] == found
        tick(store, "tiny", NOW, Notes())
        with store.transaction() as tx:
            flag = tx.flags.get("tiny")
            rollout = tx.rollouts.get("tiny")
        assert flag is not None
        assert rollout is not None
        assert rollout.killed is (verdict is Verdict.FAIL)


def test_errors_at_full_without_a_record_have_no_data() -> None:
    store = made(3, full="errors")
    gates(store)
    keep(store, [Observation("tiny", f"f{n}", Arm.CANDIDATE, NOW - 10, finish_reason="error") for n in range(120)])
    found = gates(store)["errors"]
    assert (found.verdict, found.reason) == (Verdict.NO_DATA, "no_baseline")
    assert "recorded 0 live baseline requests" in found.sentence
