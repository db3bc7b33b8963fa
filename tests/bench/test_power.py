"""The bench itself: it takes up where it stopped, refuses to mix settings, and reads its own results right."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.bench import notebook, power, power_methods, power_pools
from tests.bench.power_pools import Sizes
from tests.bench.power_table import reached, rows, table

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "02_is_it_lossless.ipynb"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(power_pools.SIZES, "small", Sizes(repeats=10, distinct=12, greedy=40))


def test_a_run_is_continued_and_never_mixed(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "power.json"
    body = power.measure("A", 1, "small", ["greedy_draft_softmax_q"], path)
    found = body["results"]["greedy_draft_softmax_q"]
    assert list(found) == list(power_methods.METHODS)
    assert found["ours"]["tokens"] <= 1_000
    assert found["rank_uniformity"]["tokens"] <= 1_200
    assert found["exact_match"]["tokens"] is None
    assert found["length"]["limit"] == 24_000
    assert json.loads(path.read_text()) == json.loads(json.dumps(body))
    capsys.readouterr()
    power.measure("A", 1, "small", ["greedy_draft_softmax_q"], path)
    assert capsys.readouterr().out == ""
    power.measure("A", 1, "small", ["greedy_draft_softmax_q"], path, again=["exact_match"])
    assert "exact_match" in capsys.readouterr().out
    with pytest.raises(ValueError, match="name another file"):
        power.measure("A", 2, "small", ["greedy_draft_softmax_q"], path)


def test_the_important_faults_come_first_and_none_is_left_out() -> None:
    names = power.order(small=False)
    assert len(names) == len(set(names)) == len(power.FAULTS) + 1
    assert names[0] == "resample_from_target"
    assert power.limit_of("uniform_zero") < power.limit_of("typical_0.1") < power.limit_of("shared_noise")


def test_the_median_counts_what_was_not_detected_as_infinite() -> None:
    assert power_methods.median([96, None, 192]) == 192
    assert power_methods.median([96, None]) is None
    assert not math.isnan(power_methods.median([96]) or math.nan)


def one(tokens: float | None, limit: int = 100_000) -> dict[str, Any]:
    return {"tokens": tokens, "limit": limit}


def test_the_table_and_the_goal_follow_from_the_figures() -> None:
    body = {
        "setting": {"world": "A"},
        "results": {
            "uniform_zero": {"ours": one(96), "mmd": one(96_000), "sequential_mmd": one(None), "rank_uniformity": one(2_400)},
            "accept_argmax": {"ours": one(960), "mmd": one(9_600)},
            "typical_0.1": {"ours": one(1_728), "mmd": one(None)},
            "typical_0.3": {"ours": one(None), "mmd": one(9_600)},
            "seed_reset": {"ours": one(4_000), "mmd": one(1_300)},
            "clean": {"ours": one(None), "mmd": one(None)},
        },
    }
    assert reached(body) == {
        "reached": ["uniform_zero"], "short": ["accept_argmax"], "unseen": ["typical_0.1"], "missed": ["typical_0.3"],
    }  # fmt: skip
    first = rows(body)[0]
    assert first.best_text_only == ("mmd", 96_000)
    lines = table(body).splitlines()
    assert len(lines) == 2 + 6
    assert "| 1,000x | 25x |" in lines[2]
    assert ">100k" in lines[2]
    assert lines[6].endswith("| 0.3x |  |")


def test_the_notebook_runs_from_its_stored_results_and_is_stored_executed() -> None:
    stored = json.loads(NOTEBOOK.read_text())
    fresh = json.loads(NOTEBOOK.read_text())
    names = notebook.run(fresh)
    assert names["runs"]["clean engine"][2] == "no_difference_proven"
    assert max(names["runs"]["wrong residual: re-sampled from the target"][1]) > math.log(100)
    figures = [out for cell in fresh["cells"] for out in cell.get("outputs", ()) if "image/png" in out.get("data", {})]
    assert len(figures) == 2
    for cell, kept in zip(fresh["cells"], stored["cells"], strict=True):
        assert [_kinds(out) for out in cell.get("outputs", ())] == [_kinds(out) for out in kept.get("outputs", ())]
    tables = [out["data"]["text/markdown"] for cell in stored["cells"] for out in cell.get("outputs", ()) if _markdown(out)]
    assert tables[0] == table(names["results"]["A"]).splitlines(keepends=True)


def _markdown(output: dict[str, Any]) -> bool:
    return "text/markdown" in output.get("data", {})


def _kinds(output: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    return output["output_type"], tuple(output.get("data", {}))
