"""`canary power`: what a calibrated route will need and could miss, before and after it has evidence; else what to do."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from canary import cli, wiring
from canary.cli import power as command
from canary.domain.errors import NoDataError, NotFoundError
from canary.flow.ports import ShadowEngine, Store
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.power import power
from canary.flow.walk import shadow
from canary.flow.walk.assess import assess
from canary.flow.walk.mirror import accept
from canary.inmemory import InMemoryStore
from canary.telemetry import SilentObserver
from tests.flow import tiny_walk
from tests.flow.tiny_walk import ROUTE

CERTIFICATES = ("bank_certificate", "pit_certificate", "request_certificate")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_walk.model_dir(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def engine(target: Path) -> ShadowEngine:
    return wiring.open_engine(tiny_walk.policy(target), threads=1)


def started(target: Path, engine: ShadowEngine, temperature: float = 1.0) -> InMemoryStore:
    store = InMemoryStore()
    apply_policy(store, tiny_walk.policy(target), tiny_walk.policy_text(target), 0.0)
    shadow.announce(store, ROUTE, engine.info, 0.0)
    accept(store, tiny_walk.prompts(16, temperature), 0.0)
    return store


def shadowed(store: Store, engine: ShadowEngine, batches: int) -> None:
    """Run so many batches of four, a day apart, and fold after each."""
    clock = itertools.count(86_400.0, 86_400.0)
    for _ in range(batches):
        at = float(next(clock))
        assert shadow.shadow_once(store, ROUTE, engine, worker="w", clock=lambda at=at: at, observer=SilentObserver())
        assess(store, ROUTE, at)


@pytest.fixture(scope="module")
def calibrated(target: Path, engine: ShadowEngine) -> InMemoryStore:
    store = started(target, engine)
    shadowed(store, engine, 1)
    return store


@pytest.fixture(scope="module")
def later(target: Path, engine: ShadowEngine) -> InMemoryStore:
    store = started(target, engine)
    shadowed(store, engine, 3)
    return store


def test_without_calibration_there_is_nothing_to_say(target: Path, engine: ShadowEngine) -> None:
    with started(target, engine).transaction() as tx:
        with pytest.raises(NoDataError, match="canary worker --route tiny"):
            power(tx, ROUTE)
        with pytest.raises(NotFoundError):
            power(tx, "nowhere")


def test_calibrating_requests_alone_give_the_closed_forms(calibrated: InMemoryStore) -> None:
    with calibrated.transaction() as tx:
        found = power(tx, ROUTE)
    assert found.num_pairs == 4
    tokens = found.tokens_per_request
    assert 1 <= tokens <= 12
    needs = {need.gate: need for need in found.gates}
    assert needs["request_certificate"].requests == 90  # ln 100 / -ln .95
    assert needs["pit_certificate"].requests == math.ceil(math.log(100) / (2 * 0.02**2 * 3) / tokens)
    bank = needs["bank_certificate"]
    assert bank.requests is not None
    assert bank.requests >= 500 / tokens  # informative tokens, at most all of them
    assert bank.slowest
    assert {needs[name].basis for name in CERTIFICATES} == {"expected"}
    assert {needs[name].stratum for name in CERTIFICATES} == {"sampled"}
    assert needs["outliers"].requests == math.ceil(960 / tokens)  # clean positions
    assert found.untested == ("greedy",)
    json.dumps(asdict(found))


def test_folded_pairs_take_the_closed_forms_place(later: InMemoryStore) -> None:
    with later.transaction() as tx:
        found = power(tx, ROUTE)
    assert found.num_pairs == 12
    assert found.requests_per_day == pytest.approx(12 / 2)  # the first and the last batch lie two days apart
    needs = {need.gate: need for need in found.gates}
    request = needs["outlier_requests"]
    assert (request.basis, request.stratum) == ("measured", "sampled")
    assert request.requests == 94 - 8  # twelve pairs, four of which calibrated
    assert request.days == pytest.approx(86 / 6)


def test_more_requests_find_weaker_faults(later: InMemoryStore) -> None:
    with later.transaction() as tx:
        few, many = ({s.alternative: s for s in power(tx, ROUTE, horizon).sensitivities} for horizon in (200, 20_000))
    assert set(few) == set(many)
    assert {"residual", "cold", "hot", "argmax"} <= set(many)
    for name, weak in many.items():
        strong = few[name].share
        if weak.share is not None and strong is not None:
            assert weak.share < strong
            assert weak.moves == pytest.approx(weak.share * weak.tv)
    assert all(s.share is not None for s in many.values() if s.tv > 0.05)


def test_a_greedy_route_needs_gaps_and_no_bank(target: Path, engine: ShadowEngine) -> None:
    store = started(target, engine, temperature=0.0)
    shadowed(store, engine, 1)
    with store.transaction() as tx:
        found = power(tx, ROUTE)
    needs = {need.gate: need for need in found.gates}
    assert not set(CERTIFICATES) & set(needs)
    assert needs["gap_certificate"].requests is not None
    assert needs["gap_certificate"].requests >= 80  # 960 clean positions, at most 12 in a request
    assert needs["request_certificate_greedy"].requests == 94  # the bet leaves a tenth of its stake on rare violations
    assert (found.sensitivities, found.untested) == ((), ("sampled",))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(store: Store, *words: str) -> tuple[int, str, str]:
        @contextmanager
        def opened(*, migrate: bool = True) -> Iterator[Store]:
            yield store

        monkeypatch.setattr(command, "open_store", opened)
        monkeypatch.setattr("sys.argv", ["canary", "power", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


def test_the_command_prints_both_tables_or_json(later: InMemoryStore, run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run(later, ROUTE)
    assert code == 0
    assert "What the gates need" in out
    assert "killed within 1000 requests" in out
    assert "No greedy request so far" in out
    code, out, _ = run(later, ROUTE, "--json", "--requests", "50")
    assert (code, json.loads(out)["horizon"]) == (0, 50)


def test_the_command_without_data_exits_4_and_says_what_to_do(
    target: Path, engine: ShadowEngine, run: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, err = run(started(target, engine), ROUTE)
    assert code == 4
    assert "canary worker --route tiny" in err
