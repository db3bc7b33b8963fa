"""The walk on a real (tiny) engine: order, exactly-once, the calibration barrier, and what a kill stops."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from canary import wiring
from canary.domain.pairs import Arm
from canary.domain.rollout import Rollout
from canary.flow.attempt import battery, calibrated, context, engine_of
from canary.flow.ports import ShadowEngine, Store
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.commands import kill
from canary.flow.walk import shadow
from canary.flow.walk.assess import assess
from canary.flow.walk.mirror import accept
from canary.inmemory import InMemoryStore
from canary.stats import calibration as calibrations
from canary.telemetry import SilentObserver
from tests.flow import tiny_walk
from tests.flow.tiny_walk import ROUTE

QUIET = SilentObserver()


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_walk.model_dir(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def engine(target: Path) -> ShadowEngine:
    return wiring.open_engine(tiny_walk.policy(target), threads=1)


@pytest.fixture
def clock() -> Callable[[], float]:
    return itertools.count(1_000.0).__next__


def begin(target: Path, engine: ShadowEngine, count: int, *, temperature: float = 1.0) -> tuple[Store, Rollout]:
    """A store with an applied policy, an announced engine and mirrored prompts."""
    store = InMemoryStore()
    text = tiny_walk.policy_text(target)
    apply_policy(store, tiny_walk.policy(target), text, 0.0)
    rollout = shadow.announce(store, ROUTE, engine.info, 0.0)
    accept(store, tiny_walk.prompts(count, temperature), 0.0)
    return store, rollout


def run_all(store: Store, engine: ShadowEngine, clock: Callable[[], float]) -> int:
    """Shadow until nothing is left, folding after every batch."""
    done = 0
    while ran := shadow.shadow_once(store, ROUTE, engine, worker="w", clock=clock, observer=QUIET):
        done += ran
        assess(store, ROUTE, clock())
    return done


def folded(store: Store, rollout: Rollout) -> dict[str, object]:
    with store.transaction() as tx:
        record = tx.evidence.get(ROUTE, rollout.epoch, rollout.attempt)
    assert record is not None
    state = dict(record["battery"])  # type: ignore[call-overload]
    state.pop("newest_pair_at")
    return state


def refolded(store: Store, rollout: Rollout, target: Path) -> dict[str, object]:
    """One uninterrupted fold of the stored pairs."""
    key = (ROUTE, rollout.epoch, rollout.attempt)
    with store.transaction() as tx:
        record, frozen = tx.evidence.get(*key), tx.evidence.get_calibration(*key)
        items = tx.pairs.contiguous(*key, after=0, limit=10_000)
    assert record is not None
    assert frozen is not None
    ctx = context(tiny_walk.policy(target), rollout.attempt, engine_of(record["engine"]), None)  # type: ignore[arg-type]
    built = battery(calibrated(ctx, calibrations.from_json(frozen)))
    state = built.fold(built.start(), items).to_json()
    state.pop("newest_pair_at")
    return state


def test_ordinals_wait_for_the_calibration_record(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    store, _ = begin(target, engine, 6)
    assert shadow.shadow_once(store, ROUTE, engine, worker="w", clock=clock, observer=QUIET) == 4
    assert shadow.shadow_once(store, ROUTE, engine, worker="w", clock=clock, observer=QUIET) == 0
    assess(store, ROUTE, clock())
    assert shadow.shadow_once(store, ROUTE, engine, worker="w", clock=clock, observer=QUIET) == 2


def test_evidence_is_bit_equal_for_any_split_of_the_fold(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    store, rollout = begin(target, engine, 14)
    assert run_all(store, engine, clock) == 14
    assert json.dumps(folded(store, rollout)) == json.dumps(refolded(store, rollout, target))


def test_a_pair_has_both_arms_under_its_own_keys(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    store, rollout = begin(target, engine, 4)
    run_all(store, engine, clock)
    with store.transaction() as tx:
        ids = tx.pairs.ids(ROUTE, rollout.epoch, rollout.attempt)
        pairs = [tx.pairs.get(i) for i in ids]
    assert [p.ordinal for p in pairs if p] == [0, 1, 2, 3]
    for pair in pairs:
        assert pair is not None
        assert pair.error is None
        assert pair.candidate.stats.num_speculative_tokens == 3
        assert pair.baseline.stats.num_draft_tokens == 0
        assert pair.candidate.trace is not None
        assert pair.baseline.rows is not None
    keys = {shadow.arm_key(i, arm) for i in ids for arm in Arm}
    assert len(keys) == 8
    assert any(p and p.baseline.token_ids != p.candidate.token_ids for p in pairs)


def test_a_lost_lease_stores_nothing(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    store, _ = begin(target, engine, 4)
    work = shadow.claim(store, ROUTE, worker="slow", now=1.0)
    assert work is not None
    pairs = shadow.run(work, engine, lambda: None)
    taken_over = shadow.claim(store, ROUTE, worker="fast", now=1e6)
    assert taken_over is not None
    assert [c.ordinal for c in taken_over.claims] == [c.ordinal for c in work.claims]
    assert shadow.store_pairs(store, work, pairs, 1e6) == 0
    again = shadow.run(taken_over, engine, lambda: None)
    assert shadow.store_pairs(store, taken_over, again, 1e6) == 4
    assert [p.candidate.token_ids for p in again] == [p.candidate.token_ids for p in pairs]


def test_ctrl_c_gives_leases_back(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    store, _ = begin(target, engine, 4)

    class Interrupted:
        info = engine.info
        calibrating = True

        def generate(self, requests: object, arm: Arm) -> list[object]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shadow.shadow_once(store, ROUTE, Interrupted(), worker="w", clock=clock, observer=QUIET)  # type: ignore[arg-type]
    assert shadow.shadow_once(store, ROUTE, engine, worker="w", clock=clock, observer=QUIET) == 4


def test_shadow_on_a_killed_route_stops(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    store, _ = begin(target, engine, 8)
    assert shadow.shadow_once(store, ROUTE, engine, worker="w", clock=clock, observer=QUIET) == 4
    assess(store, ROUTE, clock())
    kill(store, ROUTE, "a test", "tester", clock())
    assert shadow.shadow_once(store, ROUTE, engine, worker="w", clock=clock, observer=QUIET) == 0


def test_another_engine_opens_another_epoch(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    store, before = begin(target, engine, 4)
    run_all(store, engine, clock)
    other = wiring.open_engine(tiny_walk.policy(target, fault="resample_from_target"), threads=1)
    after = shadow.announce(store, ROUTE, other.info, clock())
    assert after.epoch == other.info.fingerprint != before.epoch
    evidence = assess(store, ROUTE, clock())
    assert evidence is not None
    assert evidence.folded == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_clean_candidate_is_never_killed_and_fp32_rows_are_exact(
    target: Path, engine: ShadowEngine, clock: Callable[[], float], temperature: float
) -> None:
    store, _ = begin(target, engine, 16, temperature=temperature)
    run_all(store, engine, clock)
    evidence = assess(store, ROUTE, clock())
    assert evidence is not None
    assert evidence.num_pairs == 16
    assert evidence.num_failed == 0
    assert not [g.gate for g in evidence.gates if g.verdict.value in ("fail", "error") and g.role.value != "economy"]
    rows = evidence.gate("row_gate")
    assert rows is not None
    assert rows.value is not None
    assert abs(rows.value) < 1e-4
