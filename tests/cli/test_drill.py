"""`canary drill`: the catalogue, a drill on files and on a route's own mirrored requests, its exit codes, and Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from canary import wiring
from canary.cli import main
from canary.domain.catalogue import CATALOGUE
from canary.flow.ports import Store
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import load_text
from canary.flow.walk.mirror import accept
from canary.inmemory import InMemoryStore
from tests.flow import tiny_walk


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_walk.model_dir(tmp_path_factory.mktemp("models"))


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["canary", "drill", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def files(folder: Path, target: Path, count: int, temperature: float) -> list[str]:
    (folder / "p.yaml").write_text(tiny_walk.policy_text(target))
    (folder / "p.jsonl").write_bytes(b"\n".join(tiny_walk.body(i, temperature) for i in range(count)) + b"\n")
    return ["--policy", str(folder / "p.yaml"), "--prompts", str(folder / "p.jsonl"), "--threads", "1"]


@pytest.fixture
def store(target: Path, monkeypatch: pytest.MonkeyPatch) -> InMemoryStore:
    """A database in memory with the tiny route and twelve mirrored requests."""
    found = InMemoryStore()
    text = tiny_walk.policy_text(target)
    apply_policy(found, load_text(text), text, 0.0)
    accept(found, tiny_walk.prompts(12, 0.0), 0.0)

    @contextmanager
    def open_store(*given: object, **named: object) -> Iterator[Store]:
        yield found

    monkeypatch.setattr(wiring, "open_store", open_store)
    return found


def test_the_catalogue_as_json_and_as_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [e["name"] for e in listed] == list(CATALOGUE)
    assert {"id", "group", "summary", "report", "sign", "detector", "seen_by", "harmless", "strata"} <= set(listed[0])
    assert run(monkeypatch, "--list") == 0
    shown = capsys.readouterr().out
    assert "resample_from_target" in shown
    assert "nobody: harmless" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tiny"], "say which faults"),
        (["tiny", "--all", "--fault", "uniform_zero"], "say which faults"),
        (["tiny", "--fault", "gremlin"], "no fault named 'gremlin'"),
        (["--fault", "uniform_zero"], "no route to drill"),
        (["--fault", "uniform_zero", "--policy", "p.yaml"], "takes both"),
        (["other", "--fault", "uniform_zero"], "no rollout for route 'other'"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    store: InMemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(monkeypatch, *words) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1


def test_a_drill_on_files(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = files(tmp_path, target, 16, 1.0)
    assert run(monkeypatch, *words, "--fault", "uniform_zero", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["route"], found["code"], found["power"], found["complete"]) == ("tiny", 0, 1.0, True)
    (fault,) = found["faults"]
    assert (fault["fault"], fault["outcome"], fault["gate"]) == ("uniform_zero", "caught", "losslessness")
    assert fault["reason"] in ("draft_leak", "accepted_against_rule")
    assert fault["tokens"] > fault["requests"] > 0
    assert fault["seconds"] > 0


def test_requests_that_run_out_are_inconclusive(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = files(tmp_path, target, 6, 1.0)
    assert run(monkeypatch, *words, "--fault", "generous_acceptance", "--requests", "4") == 3
    shown = capsys.readouterr().out
    assert "undecided" in shown
    assert "Neither caught nor certified in 4 requests" in shown


def test_a_drill_of_a_route_is_kept_in_its_audit_log(
    store: InMemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "tiny", "--fault", "bonus_counted", "--json", "--actor", "somebody", "--threads", "1") == 0
    printed = json.loads(capsys.readouterr().out)
    with store.transaction() as tx:
        (kept,) = tx.audit.list("tiny", kind="drill")
        rollout = tx.rollouts.get("tiny")
    assert rollout is not None
    assert (kept["actor"], rollout.epoch) == ("somebody", "")
    body = kept["body"]
    assert isinstance(body, dict)
    assert body == {name: printed[name] for name in body}
    assert (body["policy"], body["faults"][0]["outcome"], body["faults"][0]["gate"]) == (rollout.policy_hash, "caught", "errors")
    engine = wiring.open_engine(load_text(tiny_walk.policy_text(Path(policy_target(store)))), threads=1)
    assert body["epoch"] == engine.info.fingerprint


def policy_target(store: InMemoryStore) -> str:
    with store.transaction() as tx:
        current = tx.policies.current("tiny")
    assert current is not None
    return load_text(current[1]).subject.target


def test_ctrl_c_prints_and_keeps_what_is_known(
    store: InMemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened, real = [], wiring.open_engine

    def open_engine(policy, **named):  # type: ignore[no-untyped-def]
        opened.append(policy.subject.fault)
        if policy.subject.fault == "uniform_zero":
            raise KeyboardInterrupt
        return real(policy, **named)

    monkeypatch.setattr(wiring, "open_engine", open_engine)
    monkeypatch.setattr("canary.flow.tools.drill.Traffic.of", everything)
    words = ["tiny", "--fault", "biased_counts", "--fault", "uniform_zero", "--requests", "8", "--threads", "1"]
    assert run(monkeypatch, *words) == 130
    assert opened == [None, None, "biased_counts", "uniform_zero"]
    shown = capsys.readouterr().out
    assert "Stopped; what is listed was finished." in shown
    assert "biased_counts" in shown
    with store.transaction() as tx:
        (kept,) = tx.audit.list("tiny", kind="drill")
    body = kept["body"]
    assert isinstance(body, dict)
    assert (body["complete"], [f["fault"] for f in body["faults"]]) == (False, ["clean", "biased_counts"])


def everything(prompts: object, **named: object) -> object:
    """Traffic in which every fault can show."""
    from canary.domain.catalogue.entry import ALL, Need, Traffic

    return Traffic(ALL, frozenset(Need))


def test_a_route_without_requests_has_nothing_to_drill_with(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: InMemoryStore
) -> None:
    store.state.arrivals.clear()
    assert run(monkeypatch, "tiny", "--fault", "bonus_counted") == 4
    assert "no mirrored request" in capsys.readouterr().err
