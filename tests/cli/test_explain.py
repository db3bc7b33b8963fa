"""The runbook: one page per reason code that the code knows, no more and no less, with commands that exist."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import typer

from canary.cli import app
from canary.cli.explain import codes, explain, page, sections
from canary.domain.errors import NotFoundError, UsageError
from canary.domain.truth_table import ROWS
from canary.stats.live_gates import REASONS
from canary.stats.suspects import SUSPECTS

PACKAGE = Path(__file__).parents[2] / "canary"

# States of rest (`decide`), orders of persons, changes of epoch, the kill file, and gate failures whose code
# is chosen by an expression. Each must stand as a literal in the file named.
ELSEWHERE = {
    "pending": "domain/decide.py",
    "rolled_back": "domain/decide.py",
    "cool_down": "domain/decide.py",
    "attempts_used_up": "domain/decide.py",
    "archived": "domain/decide.py",
    "epoch_changed": "domain/step.py",
    "paused": "domain/orders.py",
    "rejected": "domain/orders.py",
    "aborted": "domain/orders.py",
    "kill_file": "domain/kills.py",
    "harness_at_fault": "stats/control.py",
    "too_large": "stats/memory.py",
    "replay_differs": "stats/late.py",
    "worse": "stats/live_gates.py",
}
CHOSEN = {"REASONS[name]", "failing", "found.code", "words.worse"}  # expressions whose values are collected otherwise


def reasons() -> set[str]:
    """Every reason code of a decision, a failing gate, an order or a state of rest."""
    found = {row.case for row in ROWS} | {s.code for s in SUSPECTS.values()} | set(REASONS.values()) | set(ELSEWHERE)
    for path in [*(PACKAGE / "stats").glob("*.py"), *(PACKAGE / "flow").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            found |= failing_code(node)
    return found


def failing_code(node: ast.AST) -> set[str]:
    """The code in `Verdict.FAIL, "code", ...`, in `Finding(Verdict.FAIL, "code", ...)`, and in `failing="code"`."""
    if isinstance(node, ast.keyword) and node.arg in ("failing", "worse") and isinstance(node.value, ast.Constant):
        return {node.value.value}
    parts: list[ast.expr] = node.elts if isinstance(node, ast.Tuple) else node.args if isinstance(node, ast.Call) else []
    if len(parts) < 2 or ast.unparse(parts[0]) != "Verdict.FAIL" or "Verdict." in ast.unparse(parts[1]):
        return set()
    if isinstance(parts[1], ast.Constant):
        return {str(parts[1].value)}
    said = ast.unparse(parts[1])
    assert said in CHOSEN or said.startswith("late.refuted"), f"collect the codes of {said}"
    return set()


def test_every_kill_and_hold_reason_has_a_page_and_no_page_is_about_nothing() -> None:
    assert set(codes()) == reasons()


@pytest.mark.parametrize(("code", "file"), ELSEWHERE.items())
def test_codes_collected_by_hand_stand_in_the_code(code: str, file: str) -> None:
    text = (PACKAGE / file).read_text()
    assert f'"{code}"' in text or f'"{code}:' in text


def commands(command: object, name: str = "canary") -> set[str]:
    known = {name}
    for child, made in getattr(command, "commands", {}).items():
        known |= commands(made, f"{name} {child}")
    return known


@pytest.mark.parametrize("code", sorted(codes()))
def test_a_page_says_what_it_means_and_what_to_do_with_commands_that_exist(code: str) -> None:
    text = page(code)
    assert text.startswith(f"# {code}\n")
    parts = sections(text)
    assert all(parts[name] for name in ("effect", "means", "look_at", "do"))
    known = commands(typer.main.get_command(app))
    for quoted in re.findall(r"`(canary [^`]*)`", text):
        words = [w for w in quoted.split() if re.fullmatch(r"[a-z-]+", w) and not w.startswith("--")]
        assert any(" ".join(words[:n]) in known for n in (3, 2) if len(words) >= n), quoted
        if quoted.startswith("canary explain ") and "CODE" not in quoted:
            assert quoted.split()[-1] in codes()


def test_an_unknown_code_names_the_nearest() -> None:
    with pytest.raises(NotFoundError, match="wrong_residual"):
        page("wrong_resdual")
    with pytest.raises(UsageError, match="--list"):
        explain(None, False, False)


def test_json_holds_the_parts(capsys: pytest.CaptureFixture[str]) -> None:
    explain("safety_failed", False, True)
    found = json.loads(capsys.readouterr().out)
    assert found["code"] == "safety_failed"
    assert "unkill" in found["do"]
    explain(None, True, True)
    assert json.loads(capsys.readouterr().out)["codes"] == sorted(codes())


def test_the_page_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    explain("manual_kill", False, False)
    assert "What to do" in capsys.readouterr().out
