"""Errors that are nobody's verdict: bad settings, an unusable home, and bugs have sentences and exit codes of their own."""

from __future__ import annotations

import pytest

from canary import wiring
from canary.cli import main, models


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["canary", *words])
    wiring.settings.cache_clear()
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        wiring.settings.cache_clear()
    return int(ended.value.code or 0)


def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CANARY_PORT", "abc")
    assert run(monkeypatch, "rollouts", "list") == 2
    error = capsys.readouterr().err
    assert "CANARY_PORT" in error
    assert "abc" in error
    assert len(error.strip().splitlines()) == 1


def test_an_unusable_home_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CANARY_HOME", "/proc/nope")
    assert run(monkeypatch, "demo") == 5
    error = capsys.readouterr().err.strip()
    assert "/proc/nope" in error
    assert len(error.splitlines()) == 1


def test_a_missing_model_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "models", "prepare", "/no/such/model") == 2
    assert "/no/such/model" in capsys.readouterr().err


def test_a_bug_is_never_a_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(models.wiring, "prepare_model", broken)
    assert run(monkeypatch, "models", "prepare") == 70
    assert "ZeroDivisionError" in capsys.readouterr().err
