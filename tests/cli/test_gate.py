"""`canary gate` on a tiny model: one exit code, one JSON object, and sentences for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from canary.cli import main
from tests.flow import tiny_walk


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_walk.model_dir(tmp_path_factory.mktemp("models"))


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["canary", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def files(folder: Path, policy: str, lines: list[bytes]) -> list[str]:
    (folder / "p.yaml").write_text(policy)
    (folder / "p.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return ["gate", "--policy", str(folder / "p.yaml"), "--prompts", str(folder / "p.jsonl"), "--threads", "1"]


def bodies(count: int, temperature: float = 1.0) -> list[bytes]:
    return [tiny_walk.body(i, temperature) for i in range(count)]


def verdict(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_too_few_prompts_are_inconclusive_or_not_worth_it(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = files(tmp_path, tiny_walk.policy_text(target), bodies(6))
    code = run(monkeypatch, *words, "--json")
    found = verdict(capsys)
    assert code == found["code"] == 3
    assert (found["ok"], found["verdict"], found["pairs"]) == (False, "inconclusive", 6)
    gates = found["gates"]
    assert isinstance(gates, list)
    assert {"losslessness", "acceptance", "speed"} <= {g["gate"] for g in gates}


def test_a_faulty_candidate_is_killed_and_named(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tiny_walk.policy_text(target, fault="uniform_zero")
    assert run(monkeypatch, *files(tmp_path, policy, bodies(12)), "--json") == 6
    found = verdict(capsys)
    decision = found["decision"]
    assert isinstance(decision, dict)
    assert (found["verdict"], decision["kind"], decision["gate"]) == ("killed", "kill", "losslessness")
    assert int(str(found["pairs"])) < 12


def test_the_table_is_for_people(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *files(tmp_path, tiny_walk.policy_text(target), bodies(4))) == 3
    shown = capsys.readouterr()
    assert "inconclusive" in shown.out + shown.err
    assert "losslessness" in shown.out + shown.err


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([b"{}"], "p.jsonl:1"),
        ([tiny_walk.body(0, 1.0), b"", b"not json"], "p.jsonl:3"),
        ([], "holds no prompt"),
    ],
)
def test_a_bad_prompt_file_names_its_line(
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lines: list[bytes],
    said: str,
) -> None:
    assert run(monkeypatch, *files(tmp_path, tiny_walk.policy_text(target), lines)) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("margin: 0.02", "margin: 0"), "gates.margin is 0"),
        (("num_speculative_tokens: 3", "num_speculative_tokens: 0"), "num_speculative_tokens"),
        (("margin: 0.02", "margins: 0.02"), "margins"),
        (("target: ", "target: /nowhere"), "/nowhere"),
    ],
)
def test_a_bad_policy_is_one_sentence(
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    edit: tuple[str, str],
    said: str,
) -> None:
    policy = tiny_walk.policy_text(target).replace(*edit, 1)
    assert run(monkeypatch, *files(tmp_path, policy, bodies(2))) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1


def test_an_unreachable_database_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from canary import wiring

    monkeypatch.setenv("CANARY_DATABASE_URL", "postgresql://nobody:secret@127.0.0.1:1/none")
    wiring.settings.cache_clear()
    try:
        assert run(monkeypatch, "rollouts", "list") == 5
    finally:
        wiring.settings.cache_clear()
    error = capsys.readouterr().err.strip()
    assert "127.0.0.1" in error
    assert "secret" not in error
    assert len(error.splitlines()) == 1
