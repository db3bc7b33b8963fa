"""`canary rollouts`: list, show, explain and every order, for people and as JSON, with the documented exit codes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from canary import cli
from canary.cli import rollouts
from canary.domain.rollout import State
from canary.flow.ports import Store
from canary.flow.tools.commands import kill
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, add_route, decide_now, set_weight

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store() -> Store:
    made = InMemoryStore()
    for route in ("math", "creative"):
        add_route(made, route)
    return made


@pytest.fixture
def run(store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `canary rollouts ...` on the store: exit code, standard output, standard error."""

    @contextmanager
    def opened(*, migrate: bool = True) -> Iterator[Store]:
        yield store

    monkeypatch.setattr(rollouts, "open_store", opened)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["canary", "rollouts", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


def test_list_names_every_route(store: Store, run: Run) -> None:
    set_weight(store, "math", 550)
    kill(store, "creative", "users complain", "ada", NOW)
    code, out, _ = run("list")
    assert code == 0
    (math,) = (line for line in out.splitlines() if "math" in line)
    assert "shadow" in math
    assert "5.5 %" in math
    (creative,) = (line for line in out.splitlines() if "creative" in line)
    assert "killed" in creative
    assert "manual: users complain" in creative
    code, out, _ = run("list", "--json")
    assert code == 0
    assert [(r["route"], r["killed"], r["weight"]) for r in json.loads(out)["rollouts"]] == [
        ("creative", True, 0),
        ("math", False, 550),
    ]


def test_an_empty_list_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def empty(*, migrate: bool = True) -> Iterator[Store]:
        yield InMemoryStore()

    monkeypatch.setattr(rollouts, "open_store", empty)
    code, out, _ = run("list")
    assert code == 0
    assert "No rollout yet" in out
    assert json.loads(run("list", "--json")[1]) == {"rollouts": []}


def test_show_prints_facts_decision_and_events(store: Store, run: Run) -> None:
    decide_now(store, "math")
    code, out, _ = run("show", "math")
    assert code == 0
    assert "stay (not_yet): not yet: 120 more requests" in out
    assert "2023-11-14T22:13:20.000Z" in out
    code, out, _ = run("show", "math", "--json")
    found = json.loads(out)
    assert (code, found["route"], found["last"]["num_pairs"]) == (0, "math", 40)


def test_explain_prints_every_gate_with_its_numbers(store: Store, run: Run) -> None:
    decide_now(store, "math")
    code, out, _ = run("explain", "math")
    assert code == 0
    assert out.splitlines()[0] == "math: inconclusive"
    (line,) = (line for line in out.splitlines() if "bank_certificate" in line and "is inconclusive" in line)
    for part in ("inconclusive", "1.5", "1.25 to -", "1.1", "40 requests", "120"):
        assert part in line
    code, out, _ = run("explain", "math", "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["code"], found["needed"]) == (0, "inconclusive", 3, 120)
    assert [g["gate"] for g in found["last"]["gates"]] == ["speed", "bank_certificate"]


def test_explain_before_the_first_decision_says_what_to_do(run: Run) -> None:
    code, out, _ = run("explain", "math")
    assert code == 0
    assert "No decision yet" in out
    assert json.loads(run("explain", "math", "--json")[1])["last"] is None


def test_kill_and_unkill(store: Store, run: Run) -> None:
    set_weight(store, "math", 10_000)
    code, out, _ = run("kill", "math", "--reason", "users complain", "--actor", "ada")
    assert code == 0
    assert "math is killed (manual: users complain)" in out
    assert "canary rollouts unkill math" in out
    code, out, _ = run("kill", "math", "--reason", "again", "--json")
    assert (code, json.loads(out)) == (0, {"route": "math", "killed": True, "kill_reason": "manual: users complain", "weight": 0})
    for command in ("show", "explain"):
        code, out, _ = run(command, "math")
        assert code == 0, "a readable listing exits 0 also for a killed route"
        assert "manual: users complain" in out
    assert json.loads(run("explain", "math", "--json")[1])["verdict"] == "killed"
    code, out, _ = run("unkill", "math", "--reason", "it was the gateway", "--json")
    assert (code, json.loads(out)) == (0, {"route": "math", "killed": False, "state": "shadow", "attempt": 2})
    code, out, err = run("unkill", "math", "--reason", "again")
    assert (code, out) == (5, "")
    assert "not killed" in err


def hold(store: Store, route: str, state: State = State.HELD) -> None:
    with store.transaction() as tx:
        before = tx.rollouts.get(route)
        assert before is not None
        tx.rollouts.put(replace(before, state=state, stage=1, entered_at=time.time(), version=before.version + 1))
        tx.commit()


def test_resume_and_retry(store: Store, run: Run) -> None:
    hold(store, "math")
    code, out, _ = run("resume", "math", "--reason", "looked at it", "--actor", "ada")
    assert (code, out) == (0, "math is in canary now, attempt 1: resumed: looked at it.\n")
    code, out, err = run("resume", "math", "--reason", "again")
    assert (code, out) == (5, "")
    assert "a rollout in state canary is not held" in err
    hold(store, "math")
    code, out, _ = run("retry", "math", "--reason", "a new drafter", "--json")
    assert (code, json.loads(out)) == (0, {"route": "math", "killed": False, "state": "shadow", "attempt": 2})


def test_an_order_that_must_wait_is_one_sentence(store: Store, run: Run) -> None:
    hold(store, "math", State.ROLLED_BACK)
    code, out, err = run("retry", "math", "--reason", "again")
    assert (code, out, len(err.splitlines())) == (5, "", 1)
    assert "the cool-down ends in" in err
    kill(store, "math", "users complain", "ada", NOW)
    for order in ("resume", "retry"):
        code, out, err = run(order, "math", "--reason", "again")
        assert (code, out, len(err.splitlines())) == (6, "", 1)
        assert "canary rollouts unkill math --reason WHY" in err


def test_pause_approve_reject_and_abort(store: Store, run: Run) -> None:
    hold(store, "math", State.CANARY)
    code, out, _ = run("pause", "math", "--reason", "lunch", "--actor", "ada", "--json")
    assert (code, json.loads(out)["state"]) == (0, "held")
    for order in ("approve", "reject"):
        code, out, err = run(order, "math", "--reason", "seen", "--actor", "bob")
        assert (code, out, len(err.splitlines())) == (5, "", 1)
        assert "the next stage asks for no approval" in err
    code, out, _ = run("abort", "math", "--reason", "stop", "--actor", "ada")
    assert (code, out) == (0, "math is in rolled_back now, attempt 1: aborted: stop.\n")
    with store.transaction() as tx:
        events = [(e["kind"], e["actor"]) for e in tx.audit.list("math", 2)]
        before = len(tx.audit.list("math"))
    assert events == [("abort", "ada"), ("pause", "ada")]
    assert run("abort", "math", "--reason", "again")[0] == 0
    with store.transaction() as tx:
        assert len(tx.audit.list("math")) == before, "A3.12: nothing in progress, nothing written"


def test_observe_imports_a_file_once_and_names_a_wrong_line(store: Store, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "seen.ndjson"
    good = {"observation_id": "r1", "arm": "candidate", "observed_at": NOW, "finish_reason": "stop"}
    file.write_text(json.dumps(good) + "\n")
    assert run("observe", "math", str(file)) == (0, "math: 1 new observations, 0 repeats\n", "")
    code, out, _ = run("observe", "math", str(file), "--json")
    assert (code, json.loads(out)) == (0, {"route": "math", "new": 0, "repeat": 1})
    file.write_text(json.dumps(good | {"observation_id": "r2"}) + "\n" + json.dumps(good | {"thumbs": 9}) + "\n")
    code, out, err = run("observe", "math", str(file))
    assert (code, out) == (2, "")
    assert f"{file}:2: thumbs is 9, but must be 1 or -1" in err
    assert run("observe", "nowhere", str(file))[0] == 2
    assert run("observe", "math", str(tmp_path / "missing"))[0] == 2
    with store.transaction() as tx:
        assert [o.observation_id for _, o in tx.observations.after("math", 0, 9)] == ["r1"]


def test_reading_and_killing_leave_the_schema_alone(store: Store, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    @contextmanager
    def opened(*, migrate: bool = True) -> Iterator[Store]:
        asked.append(migrate)
        yield store

    monkeypatch.setattr(rollouts, "open_store", opened)
    for words in (("list",), ("show", "math"), ("explain", "math"), ("kill", "math", "--reason", "x")):
        assert run(*words)[0] == 0
    assert asked == [False] * 4


@pytest.mark.parametrize(
    "words",
    [("show",), ("explain",), *((order, "--reason", "x") for order in ("kill", "unkill", "resume", "retry"))],
)
def test_an_unknown_route_exits_2_and_names_the_known_ones(run: Run, words: tuple[str, ...]) -> None:
    code, out, err = run(words[0], "maths", *words[1:])
    assert (code, out) == (2, "")
    assert "creative, math" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [("kill", "math"), ("kill", "math", "--reason", " "), ("show",), ("what",)])
def test_usage_errors_exit_2(run: Run, words: tuple[str, ...]) -> None:
    assert run(*words)[0] == 2


def test_names_from_outside_are_never_read_as_markup(store: Store, run: Run) -> None:
    kill(store, "math", "[bold]not markup[/bold] [/x]", "ada [red]", NOW)
    for command in ("list", "show", "explain"):
        words = (command,) if command == "list" else (command, "math")
        assert "[bold]not markup[/bold] [/x]" in run(*words)[1]
