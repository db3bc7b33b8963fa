"""`dtype: auto` is measured once, kept, and never part of an epoch under that name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from canary.domain.errors import ModelError
from canary.domain.pairs import Arm
from canary.domain.policy import Drafter, Shadow, Subject
from canary.engine import dtypes
from canary.engine.runner import OwnEngine
from tests.engine.tiny import save_tiny, tiny_model


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "target", tiny_model())


def plant(monkeypatch: pytest.MonkeyPatch, single: float) -> list[str]:
    """What single-precision steps take, 16-bit ones taking 2 and 8; gives the dtypes that were measured."""
    measured: list[str] = []

    def milliseconds(_path: Path, dtype: str) -> list[float]:
        measured.append(dtype)
        return [2 * single, 8 * single] if dtype == "float32" else [2.0, 8.0]

    monkeypatch.setattr(dtypes, "step_milliseconds", milliseconds)
    return measured


@pytest.mark.parametrize(("ratio", "wanted"), [(0.8, "float32"), (1.49, "float32"), (1.51, "bfloat16"), (4.0, "bfloat16")])
def test_single_precision_where_it_costs_little(
    monkeypatch: pytest.MonkeyPatch, target: Path, tmp_path: Path, ratio: float, wanted: str
) -> None:
    plant(monkeypatch, ratio)
    assert dtypes.resolve_dtype("auto", target, tmp_path) == wanted


def test_the_answer_is_kept_until_the_weights_change(monkeypatch: pytest.MonkeyPatch, target: Path, tmp_path: Path) -> None:
    plant(monkeypatch, 1.0)
    assert dtypes.resolve_dtype("auto", target, tmp_path) == "float32"
    measured = plant(monkeypatch, 9.0)
    assert dtypes.resolve_dtype("auto", target, tmp_path) == "float32"
    assert measured == []
    save_tiny(target, tiny_model(seed=5))
    assert dtypes.resolve_dtype("auto", target, tmp_path) == "bfloat16"
    assert measured == ["float32", "bfloat16"]


def test_of_two_that_measure_at_once_the_first_counts(monkeypatch: pytest.MonkeyPatch, target: Path, tmp_path: Path) -> None:
    true = dtypes._keep

    def late(file: Path, ratio: float) -> None:
        true(file, 9.0)  # another process was faster, and found the machine busy
        true(file, ratio)

    plant(monkeypatch, 1.0)
    monkeypatch.setattr(dtypes, "_keep", late)
    assert dtypes.resolve_dtype("auto", target, tmp_path) == "bfloat16"
    assert len(list((tmp_path / "probes").iterdir())) == 1


def test_a_named_dtype_is_not_measured(target: Path, tmp_path: Path) -> None:
    assert dtypes.resolve_dtype("bfloat16", target, tmp_path / "never") == "bfloat16"
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"ratio": 1}', '{"dtype": "auto"}'])
def test_a_damaged_answer_is_named(monkeypatch: pytest.MonkeyPatch, target: Path, tmp_path: Path, text: str) -> None:
    plant(monkeypatch, 1.0)
    dtypes.resolve_dtype("auto", target, tmp_path)
    (kept,) = (tmp_path / "probes").iterdir()
    kept.write_text(text)
    with pytest.raises(ModelError, match=rf"{kept.name}.*damaged.*Delete the file"):
        dtypes.resolve_dtype("auto", target, tmp_path)


def test_real_steps_are_measured(target: Path) -> None:
    assert all(
        len(found) == 4 and min(found) > 0 for found in (dtypes.step_milliseconds(target, d) for d in ("float32", "bfloat16"))
    )


def test_the_epoch_names_the_dtype_that_was_found(monkeypatch: pytest.MonkeyPatch, target: Path, tmp_path: Path) -> None:
    plant(monkeypatch, 1.0)
    auto = Subject("own", str(target), Drafter("ngram", 4), "auto")
    shadow = Shadow(batch_size=2, max_tokens=8)
    found = OwnEngine.open(auto, shadow, tmp_path)
    named = OwnEngine.open(replace(auto, dtype="float32"), shadow, tmp_path)
    assert (found.info.described["dtype"], found.info.described["forward"], found.info.exact_rows) == ("float32", "fast", True)
    assert found.info.fingerprint == named.info.fingerprint
    assert found.generate([], Arm.CANDIDATE) == []
