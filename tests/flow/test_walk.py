"""The walk on a real (tiny) engine: order, exactly-once, the calibration barrier, and what a kill stops."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from canary import wiring
from canary.domain.errors import CanaryError, ConflictError, IdentityError, ModelError, UnreachableError
from canary.domain.evidence import Verdict
from canary.domain.pairs import Arm, Generation, Pair, Timing
from canary.domain.rollout import Rollout
from canary.engine import runner
from canary.engine.drafters.base import Proposal, Round
from canary.flow import arms
from canary.flow.attempt import calibrated, context, controlled, engine_of
from canary.flow.ports import ArmRequest, EngineInfo, ShadowEngine, Store, Transaction
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.commands import kill, unkill
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


class Wrapped:
    """An engine in an engine's clothes; what a test changes, it overrides."""

    def __init__(self, engine: ShadowEngine, info: EngineInfo | None = None) -> None:
        self.engine = engine
        self.info = info or engine.info
        self.passes: list[tuple[Arm, int]] = []

    @property
    def calibrating(self) -> bool:
        return self.engine.calibrating

    @calibrating.setter
    def calibrating(self, value: bool) -> None:
        self.engine.calibrating = value

    def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> Sequence[Generation]:
        self.passes.append((arm, len(requests)))
        return self.engine.generate(requests, arm)

    def time_block(self, requests: Sequence[ArmRequest], arm: Arm) -> Timing:
        return self.engine.time_block(requests, arm)


class Away(InMemoryStore):
    """A store whose database leaves for a moment.

    Args:
        gone: so many of the next transactions do not begin.
        gone_with_pairs: so many of the next commits that hold new pairs fail.
    """

    gone = 0
    gone_with_pairs = 0

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:  # type: ignore[override]
        if self.gone:
            self.gone -= 1
            raise UnreachableError("gone")
        with super().transaction() as tx:
            keep = tx.commit

            def commit() -> None:
                if self.gone_with_pairs and len(tx._state.pairs) > len(self.state.pairs):
                    self.gone_with_pairs -= 1
                    raise UnreachableError("gone")
                keep()

            tx.commit = commit  # type: ignore[method-assign]
            yield tx


class Noted:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def note(self, event: str, **facts: object) -> None:
        self.events.append((event, facts))

    @property
    def names(self) -> list[str]:
        return [event for event, _ in self.events]


def begin(
    target: Path,
    engine: ShadowEngine,
    count: int,
    *,
    temperature: float = 1.0,
    control_rate: float = 0.0,
    store: InMemoryStore | None = None,
) -> tuple[Store, Rollout]:
    """A store with an applied policy, an announced engine and mirrored prompts."""
    store = store or InMemoryStore()
    text = tiny_walk.policy_text(target, control_rate=control_rate)
    apply_policy(store, tiny_walk.policy(target, control_rate=control_rate), text, 0.0)
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


def once(store: Store, engine: ShadowEngine, clock: Callable[[], float], **more: object) -> int:
    return shadow.shadow_once(store, ROUTE, engine, worker="w", clock=clock, **{"observer": QUIET, **more})  # type: ignore[arg-type]


def claimed(store: Store, engine: ShadowEngine, *, worker: str, now: float) -> shadow.Work:
    work = shadow.claim(store, ROUTE, worker=worker, now=now, epoch=engine.info.fingerprint)
    assert work is not None
    return work


def reapply(store: Store, target: Path, **changes: str | int | None) -> Rollout:
    return apply_policy(store, tiny_walk.policy(target, **changes), tiny_walk.policy_text(target, **changes), 0.0)


def stored(store: Store, rollout: Rollout) -> list[Pair]:
    with store.transaction() as tx:
        found = [tx.pairs.get(i) for i in tx.pairs.ids(ROUTE, rollout.epoch, rollout.attempt)]
    return [pair for pair in found if pair is not None]


def tokens(pairs: Sequence[Pair]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(p.baseline.token_ids, p.candidate.token_ids) for p in pairs]


def folded(store: Store, rollout: Rollout) -> dict[str, object]:
    with store.transaction() as tx:
        record = tx.evidence.get(ROUTE, rollout.epoch, rollout.attempt)
    assert record is not None
    return {name: _timeless(record[name]) for name in ("battery", "control")}


def _timeless(state: Any) -> dict[str, object]:
    return {key: value for key, value in state.items() if key != "newest_pair_at"}


def refolded(store: Store, rollout: Rollout, target: Path) -> dict[str, object]:
    """One uninterrupted fold of the stored pairs."""
    key = (ROUTE, rollout.epoch, rollout.attempt)
    with store.transaction() as tx:
        record, frozen = tx.evidence.get(*key), tx.evidence.get_calibration(*key)
        items = tx.pairs.contiguous(*key, after=0, limit=10_000)
    assert record is not None
    assert frozen is not None
    policy = tiny_walk.policy(target)
    ctx = context(policy, rollout.attempt, engine_of(record["engine"]), None)  # type: ignore[arg-type]
    built = controlled(policy, calibrated(ctx, calibrations.from_json(frozen)))
    return {name: _timeless(state) for name, state in built.fold(built.start(), items).to_json().items()}


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
    pairs = stored(store, rollout)
    assert [p.ordinal for p in pairs] == [0, 1, 2, 3]
    for pair in pairs:
        assert pair.error is None
        assert pair.candidate.stats.num_speculative_tokens == 3
        assert pair.baseline.stats.num_draft_tokens == 0
        assert pair.candidate.trace is not None
        assert pair.baseline.rows is not None
    keys = {arms.arm_key(p.pair_id, arm) for p in pairs for arm in Arm}
    assert len(keys) == 8
    assert any(p.baseline.token_ids != p.candidate.token_ids for p in pairs)


def test_a_lost_lease_stores_nothing(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    store, _ = begin(target, engine, 4)
    work = claimed(store, engine, worker="slow", now=1.0)
    pairs = shadow.run(work, engine, lambda: None, QUIET)
    taken_over = claimed(store, engine, worker="fast", now=1e6)
    assert [c.ordinal for c in taken_over.claims] == [c.ordinal for c in work.claims]
    assert shadow.store_pairs(store, work, pairs, 1e6) == 0
    again = shadow.run(taken_over, engine, lambda: None, QUIET)
    assert shadow.store_pairs(store, taken_over, again, 1e6) == 4
    assert tokens(again) == tokens(pairs)


def test_a_batch_ends_when_all_its_leases_are_lost(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    store, rollout = begin(target, engine, 4)
    noted = Noted()

    class Overtaken(Wrapped):
        def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> Sequence[Generation]:
            self.taken_over = claimed(store, engine, worker="fast", now=1e6)
            return super().generate(requests, arm)

    slow = Overtaken(engine)
    assert once(store, slow, clock, observer=noted) == 0
    assert len(slow.passes) == 1
    assert noted.events == [("leases_lost", {"route": ROUTE, "ordinals": [0, 1, 2, 3]})]
    assert stored(store, rollout) == []
    pairs = shadow.run(slow.taken_over, engine, lambda: None, QUIET)
    assert shadow.store_pairs(store, slow.taken_over, pairs, 1e6) == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), ModelError("the weights are gone")])
def test_what_stops_a_batch_gives_its_leases_back(
    target: Path, engine: ShadowEngine, clock: Callable[[], float], error: BaseException
) -> None:
    store, _ = begin(target, engine, 4)

    class Stopped(Wrapped):
        def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> Sequence[Generation]:
            raise error

    noted = Noted()
    with pytest.raises(type(error)):
        once(store, Stopped(engine), clock, observer=noted)
    assert noted.names == (["batch_failed"] if isinstance(error, CanaryError) else [])
    again = claimed(store, engine, worker="w", now=clock())
    assert [(c.ordinal, c.tries) for c in again.claims] == [(i, 0) for i in range(4)]


def test_an_error_of_our_own_after_the_passes_gives_the_leases_back_too(
    target: Path, engine: ShadowEngine, clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = begin(target, engine, 4)
    with monkeypatch.context() as patched:
        patched.setattr(shadow, "pack", lambda increments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            once(store, engine, clock)
    assert once(store, engine, clock) == 4


def test_an_error_in_the_claim_leaves_no_lease(
    target: Path, engine: ShadowEngine, clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, rollout = begin(target, engine, 4)
    with monkeypatch.context() as patched:
        patched.setattr(shadow, "Outlook", lambda *given, **named: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            once(store, engine, clock)
    with store.transaction() as tx:
        assert tx.claims.open_count(ROUTE, rollout.epoch, rollout.attempt) == 0
    assert once(store, engine, clock) == 4


def test_a_request_that_breaks_the_engine_is_a_failed_arm(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    calm, calm_rollout = begin(target, engine, 8)
    run_all(calm, engine, clock)
    undisturbed = stored(calm, calm_rollout)

    class Breaking(Wrapped):
        def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> Sequence[Generation]:
            for request in requests:
                if request.prompt.request_id == "r6" and arm is Arm.CANDIDATE:
                    raise RuntimeError(f"cannot run {request.prompt.messages[0].content!r}")
            return super().generate(requests, arm)

    store, rollout = begin(target, engine, 8)
    noted, broken = Noted(), Breaking(engine)
    for _ in range(2):
        assert once(store, broken, clock, observer=noted) == 4
        evidence = assess(store, ROUTE, clock())
    assert noted.names == ["batch_rerun", "request_failed"]
    pairs = stored(store, rollout)
    assert tokens(pairs[:6] + pairs[7:]) == tokens(undisturbed[:6] + undisturbed[7:])
    failed = pairs[6]
    assert (failed.error, failed.candidate.finish_reason, failed.candidate.token_ids) == (None, "error", ())
    assert failed.candidate.error == "RuntimeError (its message quotes the prompt and is left out)"
    assert (failed.candidate.stats.num_speculative_tokens, failed.candidate.stats.num_steps) == (3, 0)
    assert failed.baseline == undisturbed[6].baseline
    assert (failed.baseline_timing, failed.candidate_timing) == (None, None)
    assert evidence is not None
    errors = evidence.gate("errors")
    assert errors is not None
    assert (errors.details["candidate_failed"], errors.details["baseline_failed"], errors.n) == (1, 0, 8)
    assert (evidence.num_pairs, evidence.num_failed) == (8, 0)


def test_a_batch_that_breaks_once_is_run_request_by_request_with_the_same_draws(
    target: Path, engine: ShadowEngine, clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, calm_rollout = begin(target, engine, 4)
    run_all(calm, engine, clock)
    store, rollout = begin(target, engine, 4)
    score, calls = runner.score, itertools.count()

    def out_of_memory(*given: object) -> object:
        if next(calls) == 1:  # in the middle of the loop, while other requests hold their rows
            raise MemoryError
        return score(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "score", out_of_memory)
    noted = Noted()
    assert once(store, engine, clock, observer=noted) == 4
    ((event, facts),) = noted.events
    assert (event, facts["detail"]) == ("batch_rerun", "MemoryError")
    assert next(calls) == 2 + 4 + 4, "the interrupted loop has let its rows go"
    assert [p.error or p.baseline.error or p.candidate.error for p in stored(store, rollout)] == [None] * 4
    assert tokens(stored(store, rollout)) == tokens(stored(calm, calm_rollout))


def test_a_broken_identity_is_a_failed_arm(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    class Miscounting(Wrapped):
        def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> Sequence[Generation]:
            if arm is Arm.CANDIDATE and any(r.prompt.request_id == "r1" for r in requests):
                raise IdentityError("5 tokens emitted, but accepted + steps - cut = 6")
            return super().generate(requests, arm)

    store, rollout = begin(target, engine, 4)
    noted = Noted()
    assert once(store, Miscounting(engine), clock, observer=noted) == 4
    assert noted.names == ["batch_rerun", "request_failed"]
    why = "IdentityError: 5 tokens emitted, but accepted + steps - cut = 6"
    assert [p.candidate.error for p in stored(store, rollout)] == [None, why, None, None]


def test_a_timing_that_breaks_is_left_out(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    class Untimed(Wrapped):
        def time_block(self, requests: Sequence[ArmRequest], arm: Arm) -> Timing:
            if arm is Arm.CANDIDATE:
                raise RuntimeError("out of memory")
            return super().time_block(requests, arm)

    store, rollout = begin(target, engine, 4)
    assert once(store, Untimed(engine), clock) == 4
    for pair in stored(store, rollout):
        assert pair.error is None
        assert pair.baseline_timing is not None
        assert pair.candidate_timing is None
    evidence = assess(store, ROUTE, clock())
    assert evidence is not None
    speed = evidence.gate("speed")
    assert speed is not None
    assert (speed.verdict, speed.n) == (Verdict.NO_DATA, 0)


def test_a_database_that_is_away_for_a_moment_costs_no_batch(
    target: Path, engine: ShadowEngine, clock: Callable[[], float]
) -> None:
    away = Away()
    store, rollout = begin(target, engine, 4, store=away)

    class Leaving(Wrapped):
        def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> Sequence[Generation]:
            away.gone, away.gone_with_pairs = 1, 2
            return super().generate(requests, arm)

    noted, leaving = Noted(), Leaving(engine)
    pauses: list[float] = []
    assert once(store, leaving, clock, observer=noted, pause=pauses.append) == 4
    assert pauses == list(shadow.STORE_PAUSES[:2])
    assert noted.names == ["heartbeat_failed"] * 2 + ["store_failed"] * 2
    assert leaving.passes in ([(a, 4), (b, 4)] for a, b in itertools.permutations(Arm))
    assert len(stored(store, rollout)) == 4


def test_a_database_that_stays_away_ends_the_batch_and_loses_nothing(
    target: Path, engine: ShadowEngine, clock: Callable[[], float]
) -> None:
    away = Away()
    store, rollout = begin(target, engine, 4, store=away)
    away.gone_with_pairs = 99
    pauses: list[float] = []
    with pytest.raises(UnreachableError):
        once(store, engine, clock, pause=pauses.append)
    assert pauses == list(shadow.STORE_PAUSES)
    away.gone_with_pairs = 0
    assert stored(store, rollout) == []
    assert once(store, engine, clock) == 4


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


def upgraded(engine: ShadowEngine) -> Wrapped:
    """The same engine with another library."""
    described = {**engine.info.described, "libraries": "torch 99"}
    return Wrapped(engine, replace(engine.info, fingerprint="f" * 32, described=described))


def test_two_engines_do_not_take_a_route_from_each_other(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    store, before = begin(target, engine, 8)
    newer = upgraded(engine)
    after = shadow.announce(store, ROUTE, newer.info, clock(), policy_hash=before.policy_hash)
    assert after.epoch == newer.info.fingerprint
    assert once(store, engine, clock) == 0, "no pairs for an epoch that is not the engine's"
    for _ in range(2):
        with pytest.raises(ConflictError, match=r"replaced by f{12} under .* differ in libraries \(here .*, there torch 99\)"):
            shadow.announce(store, ROUTE, engine.info, clock(), policy_hash=before.policy_hash)
    assert shadow.announce(store, ROUTE, newer.info, clock()) == after
    assert once(store, newer, clock) == 4
    assert [p.epoch for p in stored(store, after)] == [newer.info.fingerprint] * 4


def test_the_older_engine_rests_in_a_new_attempt_too(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    store, _ = begin(target, engine, 4)
    shadow.announce(store, ROUTE, upgraded(engine).info, clock())
    kill(store, ROUTE, "a test", "tester", clock())
    unkill(store, ROUTE, "the test is over", "tester", clock())
    with pytest.raises(ConflictError, match="already been replaced"):
        shadow.announce(store, ROUTE, engine.info, clock())


def test_a_policy_applied_between_announce_and_claim(target: Path, engine: ShadowEngine, clock: Callable[[], float]) -> None:
    store, before = begin(target, engine, 4)
    now = reapply(store, target, max_tokens=8)
    with pytest.raises(ConflictError, match="now pins"):
        shadow.announce(store, ROUTE, engine.info, clock(), policy_hash=before.policy_hash)
    shadow.announce(store, ROUTE, engine.info, clock(), policy_hash=now.policy_hash)
    assert once(store, engine, clock, policy_hash=before.policy_hash) == 0
    assert once(store, engine, clock, policy_hash=now.policy_hash) == 4
    assert [(p.epoch, p.attempt) for p in stored(store, now)] == [(before.epoch, 2)] * 4


@pytest.mark.parametrize("max_tokens", [12, 8], ids=["the same policy", "other numbers"])
def test_a_return_to_an_earlier_epoch_opens_the_next_attempt(
    target: Path, engine: ShadowEngine, clock: Callable[[], float], max_tokens: int
) -> None:
    store, first = begin(target, engine, 4)
    run_all(store, engine, clock)
    drill = "resample_from_target"
    reapply(store, target, fault=drill)
    away = shadow.announce(store, ROUTE, wiring.open_engine(tiny_walk.policy(target, fault=drill), threads=1).info, clock())
    assert (away.epoch == first.epoch, away.attempt) == (False, 1)
    pinned = reapply(store, target, max_tokens=max_tokens)
    back = shadow.announce(store, ROUTE, engine.info, clock(), policy_hash=pinned.policy_hash)
    assert (back.epoch, back.attempt) == (first.epoch, 2)
    evidence = assess(store, ROUTE, clock())
    assert evidence is not None
    assert (evidence.folded, evidence.attempt) == (0, 2)
    assert run_all(store, engine, clock) == 4
    assert not {p.pair_id for p in stored(store, back)} & {p.pair_id for p in stored(store, first)}
    with store.transaction() as tx:
        records = [tx.evidence.get(ROUTE, first.epoch, attempt) for attempt in tx.evidence.attempts(ROUTE, first.epoch)]
    assert [r and r["policy"] for r in records] == [first.policy_hash, pinned.policy_hash]


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


class Silent:
    """A drafter that never drafts."""

    def __init__(self, drafter: Any) -> None:
        self.kind = drafter.kind
        self.begin, self.commit, self.move, self.end = drafter.begin, drafter.commit, drafter.move, drafter.end

    def propose(self, asked: Round) -> Proposal:
        return Proposal(asked.keys.new_zeros(len(asked.limits), 0), (0,) * len(asked.limits))


@pytest.mark.parametrize("verification", ["token", "block"])
def test_a_pair_for_which_nothing_was_drafted_counts(target: Path, verification: str) -> None:
    """As adaptive k and texts without a repetition leave it."""
    policy = tiny_walk.policy(target)
    subject = replace(policy.subject, drafter=replace(policy.subject.drafter, verification=verification))
    quiet = wiring.open_engine(replace(policy, subject=subject), threads=1)
    loop = quiet._decoders[Arm.CANDIDATE]  # type: ignore[attr-defined]
    loop.drafter = Silent(loop.drafter)
    store, rollout = begin(target, quiet, 4)
    once(store, quiet, lambda: 2.0)
    with store.transaction() as tx:
        pairs = tx.pairs.page(ROUTE, rollout.epoch, rollout.attempt, after=-1, limit=10)
    assert [sum(pair.candidate.stats.drafted) for pair in pairs] == [0] * 4
    assert [(pair.error, bool(pair.increments)) for pair in pairs] == [(None, True)] * 4
