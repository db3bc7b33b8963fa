"""`canary policy`: exit codes, words and JSON of validate, test, apply and schema."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import canary
from canary import wiring
from canary.cli.policy import app
from canary.domain.errors import PolicyError, UnreachableError
from canary.flow.ports import Store
from canary.flow.tools.policy_files import load
from canary.inmemory import InMemoryStore
from canary.shipped import shipped
from tests.flow.policy_texts import LEGAL

DEMO = shipped("policies") / "demo"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> InMemoryStore:
    made = InMemoryStore()

    @contextlib.contextmanager
    def opened(*, migrate: bool = True) -> Iterator[Store]:
        yield made

    monkeypatch.setattr(wiring, "open_store", opened)
    return made


@pytest.fixture
def legal(tmp_path: Path) -> Path:
    path = tmp_path / "math.yaml"
    path.write_text(LEGAL)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


def test_validate_a_folder() -> None:
    result = run("validate", DEMO)
    assert result.exit_code == 0
    assert [line.split(":")[0].rsplit("/", 1)[1] for line in result.stdout.splitlines()] == [
        f"{n}.yaml" for n in ("creative", "faq", "math-drill", "math", "rag")
    ]
    assert f"content hash {load(DEMO / 'rag.yaml').content_hash[:12]}" in result.stdout


def test_validate_complains_about_every_wrong_file_and_passes_none(tmp_path: Path, legal: Path) -> None:
    (tmp_path / "one.yaml").write_text(LEGAL.replace("margin: 0.02", "margin: 0"))
    (tmp_path / "two.yaml").write_text(LEGAL.replace("route: math", "rout: math"))
    result = run("validate", tmp_path)
    assert result.exit_code == 2
    assert "math.yaml: legal: route math" in result.stdout
    assert "one.yaml:10:11: gates.margin is 0, but must be above 0 and below 0.5. Write e.g. 0.01." in result.stderr
    assert "two.yaml:1:1: unknown key 'rout'. Did you mean 'route'?" in result.stderr


def test_validate_as_json(tmp_path: Path, legal: Path) -> None:
    (tmp_path / "one.yaml").write_text(LEGAL.replace("margin: 0.02", "margin: 0"))
    result = run("validate", tmp_path, "--json")
    body = json.loads(result.stdout)
    assert (result.exit_code, body["ok"], [p["ok"] for p in body["policies"]]) == (2, False, [True, False])
    assert body["policies"][0]["content_hash"] == load(legal).content_hash
    assert body["policies"][1]["error"]["where"].endswith("one.yaml:10:11")
    assert json.loads(run("validate", legal, "--json").stdout)["ok"] is True


OBSERVED = "{mode: observe, why: nobody waits}"


def with_shadow(lines: str) -> str:
    """A legal policy with more lines under `shadow`; what is timed together is what the speed gate decides on."""
    loaded = LEGAL.replace("gates:\n", "gates:\n  speed_concurrency: 4\n") if "timing_concurrency: 4" in lines else LEGAL
    return loaded.replace("batch_size: 8", f"batch_size: 8\n  {lines}")


LIVE = LEGAL.replace("    live: waived\n    why: no users\n", "    live: [errors, speed]\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LEGAL + "economy: carry\n", []),
        (LEGAL, []),
        (LIVE + "economy: restart\n", []),
        (with_shadow("calibration_requests: 11"), ["ttft_tail learns from calibrating requests"]),
        (with_shadow("timing_concurrency: 4"), ["ttft_tail learns"]),
        (with_shadow("timing_concurrency: 4\n  calibration_requests: 60"), []),
        (with_shadow("timing_concurrency: 4").replace("gates:\n", "gates:\n  ttft_slo: 500ms\n"), []),
        (with_shadow("timing_concurrency: 4").replace("gates:\n", f"gates:\n  modes: {{ttft_tail: {OBSERVED}}}\n"), []),
    ],
)
def test_validate_warns_about_what_a_policy_asks_for_and_cannot_get(legal: Path, text: str, said: list[str]) -> None:
    legal.write_text(text)
    plain, body = run("validate", legal), json.loads(run("validate", legal, "--json").stdout)
    warnings = body["policies"][0]["warnings"]
    assert (plain.exit_code, body["ok"], len(warnings)) == (0, True, len(said))
    assert all(warning.startswith(start) for warning, start in zip(warnings, said, strict=True))
    assert plain.stderr.splitlines() == [f"{legal}: warning: {warning}" for warning in warnings]


def test_the_shipped_policies_and_the_documented_one_ask_for_nothing_more(tmp_path: Path) -> None:
    documented = Path(canary.__file__).parent / "docs" / "policy.md"
    (example,) = re.findall(r"```yaml\n(.*?)```", documented.read_text(), re.DOTALL)
    (tmp_path / "faq.yaml").write_text(example)
    for path in (DEMO, tmp_path):
        result = run("validate", path)
        assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("command", ["validate", "test"])
def test_a_missing_file_or_an_empty_folder(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path / "none.yaml")
    assert result.exit_code == 2
    assert "none.yaml: cannot be read: No such file or directory. Name a YAML file that exists." in result.stderr
    empty = run(command, tmp_path)
    assert isinstance(empty.exception, PolicyError)
    assert "holds no policy file" in str(empty.exception)


def test_golden_cases_pass() -> None:
    result = run("test", DEMO / "faq.yaml")
    assert result.exit_code == 0
    assert result.stdout.strip().endswith("59 of 59 golden decisions in faq.cases.yaml hold")
    assert "held at canary-10" in run("test", DEMO / "faq.yaml", "--verbose").stdout


def test_a_failing_case_is_shown(tmp_path: Path) -> None:
    shutil.copy(DEMO / "faq.yaml", tmp_path)
    text = (DEMO / "faq.cases.yaml").read_text().replace("advance, all_pass, 5 %", "stay, all_pass, 0 %")
    (tmp_path / "faq.cases.yaml").write_text(text)
    result = run("test", tmp_path)
    assert result.exit_code == 1
    assert "58 of 59" in result.stdout
    assert "decision is advance, expected stay" in result.stdout
    body = json.loads(run("test", tmp_path, "--json").stdout)
    assert (body["ok"], body["run"], body["failed"]) == (False, 59, 1)
    wrong = [o for o in body["policies"][0]["outcomes"] if o["problems"]]
    assert [(o["place"], o["decision"], o["weight"]) for o in wrong] == [("shadow", "advance", 500)]


def test_a_policy_without_cases_exits_2(legal: Path) -> None:
    result = run("test", legal)
    assert result.exit_code == 2
    assert "math.cases.yaml: cannot be read" in result.stderr


def test_apply_starts_changes_nothing_and_starts_again(store: InMemoryStore, legal: Path) -> None:
    first = json.loads(run("apply", legal, "--json").stdout)["policies"][0]
    assert (first["route"], first["attempt"], first["killed"]) == ("math", 1, False)
    with store.transaction() as tx:
        rollout, flag = tx.rollouts.get("math"), tx.flags.get("math")
        assert rollout is not None
        assert flag is not None
        assert (rollout.policy_hash, rollout.stage, flag.weight) == (load(legal).content_hash, 0, 0)
        assert tx.policies.current("math") == (load(legal).content_hash, LEGAL)
    again = run("apply", legal)
    assert (again.exit_code, "attempt 1" in again.stdout) == (0, True)
    legal.write_text(LEGAL.replace("0.02", "0.015"))
    assert "attempt 2" in run("apply", legal).stdout


def test_apply_applies_nothing_if_one_file_is_wrong(store: InMemoryStore, tmp_path: Path, legal: Path) -> None:
    (tmp_path / "zero.yaml").write_text(LEGAL.replace("route: math", "route: rag").replace("tokens: 4", "tokens: 0"))
    result = run("apply", tmp_path, "--json")
    body = json.loads(result.stdout)
    assert (result.exit_code, body["ok"], body["error"]["code"]) == (2, False, "policy")
    assert "num_speculative_tokens is 0" in body["error"]["detail"]
    assert isinstance(run("apply", tmp_path).exception, PolicyError)
    with store.transaction() as tx:
        assert tx.policies.routes() == []


def test_apply_refuses_two_policies_for_one_route(store: InMemoryStore, tmp_path: Path, legal: Path) -> None:
    shutil.copy(legal, tmp_path / "other.yaml")
    assert "two files name the route 'math'" in str(run("apply", tmp_path).exception)


def test_apply_without_a_database_exits_5(monkeypatch: pytest.MonkeyPatch, legal: Path) -> None:
    @contextlib.contextmanager
    def opened(*, migrate: bool = True) -> Iterator[Store]:
        raise UnreachableError("the database does not answer")
        yield

    monkeypatch.setattr(wiring, "open_store", opened)
    result = run("apply", legal, "--json")
    assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (5, "unreachable")


def test_schema_is_json() -> None:
    assert json.loads(run("schema").stdout)["title"] == "Canary policy"


@pytest.mark.parametrize("command", [(), ("validate",), ("test",), ("apply",)])
def test_help_teaches(command: tuple[str, ...]) -> None:
    text = run(*command, "--help").stdout
    assert ("Exit code" in text, "--json" in text or not command) == (True, True)


def test_a_looser_policy_is_shown_proposed_and_approved_by_somebody_else(store: InMemoryStore, legal: Path) -> None:
    run("apply", legal, "--actor", "ada")
    first = load(legal)
    legal.write_text(LEGAL.replace("0.02", "0.03"))
    second = load(legal)
    said = json.loads(run("diff", legal, "--json").stdout)
    (change,) = said["changes"]
    assert (said["looser"], said["effect"], said["from"], said["to"]) == (
        True, "restart", first.content_hash, second.content_hash
    )  # fmt: skip
    assert (change["path"], change["old"], change["new"], change["direction"]) == ("gates.margin", 0.02, 0.03, "looser")
    assert "somebody else must approve it" in run("diff", legal).stdout
    waiting = run("apply", legal, "--actor", "ada", "--json")
    assert (waiting.exit_code, json.loads(waiting.stdout)["error"]["code"]) == (5, "approval_needed")
    own = run("approve", "math", second.content_hash[:12], "--actor", "ada").exception
    assert (getattr(own, "code", ""), getattr(own, "exit_code", 0)) == ("self_approval", 5)
    done = run("approve", "math", second.content_hash[:12], "--actor", "bob", "--json")
    assert json.loads(done.stdout) == {"route": "math", "content_hash": second.content_hash, "state": "shadow", "attempt": 2}
    assert "says the same" in run("diff", legal).stdout


def test_export_gives_back_what_decides(store: InMemoryStore, legal: Path, tmp_path: Path) -> None:
    run("apply", legal)
    out = tmp_path / "out.yaml"
    assert run("export", "math", "--out", out).exit_code == 0
    assert load(out) == load(legal)
    assert run("export", "math").stdout == out.read_text()
    other = tmp_path / "older.yaml"
    other.write_text(LEGAL.replace("fresh: 30s", "fresh: 20s"))
    said = json.loads(run("diff", legal, "--against", other, "--json").stdout)
    assert [(c["path"], c["direction"]) for c in said["changes"]] == [("limits.fresh_seconds", "looser")]
