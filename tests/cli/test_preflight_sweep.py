"""`canary preflight` and `canary sweep` on a tiny model, from files: exit codes, one JSON object, the patch and the picture."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from canary import wiring
from canary.cli import main
from canary.cli.preflight import parse_bytes
from canary.domain.errors import UsageError
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump
from canary.flow.walk.mirror import accept
from tests.engine.tiny import save_tiny, tiny_model
from tests.flow import tiny_walk


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny", tiny_model(eos=False, loopy=True))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CANARY_HOME", str(tmp_path / "home"))
    wiring.settings.cache_clear()
    yield tmp_path / "home"
    wiring.settings.cache_clear()


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["canary", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def files(folder: Path, target: Path, *, draft: Path | None = None, count: int = 3) -> list[str]:
    text = tiny_walk.policy_text(target)
    if draft is not None:
        text = text.replace("name: ngram", f"name: draft_model, model: {draft}")
    (folder / "p.yaml").write_text(text)
    (folder / "p.jsonl").write_bytes(b"\n".join(tiny_walk.body(i, 0.0) for i in range(count)))
    return ["--policy", str(folder / "p.yaml"), "--prompts", str(folder / "p.jsonl"), "--threads", "1"]


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_preflight_of_a_sound_route_passes(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preflight", *files(tmp_path, target), "--requests", "2", "--memory", "1G", "--json"]
    assert run(monkeypatch, *words) == 0
    found = printed(capsys)
    assert (found["ok"], found["code"], found["memory"]["total"]) == (True, 0, 2**30)
    assert found["latency"]["requests"] == 2
    assert found["target"]["special_ids"] == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "unk_token_id": None}


def test_preflight_of_a_mismatched_pair_is_refused_and_names_the_field(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = Path(shutil.copytree(target, tmp_path / "draft"))
    tokenizer = AutoTokenizer.from_pretrained(draft)
    tokenizer.eos_token = "a"
    tokenizer.save_pretrained(draft)
    assert run(monkeypatch, "preflight", *files(tmp_path, target, draft=draft), "--requests", "0") == 2
    said = capsys.readouterr().out
    assert "refused" in said
    assert "draft.eos_token_id" in said
    assert "Decode share: not measured" in said


def test_a_route_brings_its_policy_and_its_newest_prompts(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, chosen = wiring.memory_store(), tiny_walk.policy(target)
    apply_policy(store, chosen, dump(chosen), 0.0, actor="test")
    accept(store, tiny_walk.prompts(3, 0.0), 0.0)
    monkeypatch.setattr(wiring, "open_store", lambda: nullcontext(store))
    assert run(monkeypatch, "preflight", tiny_walk.ROUTE, "--requests", "2", "--threads", "1", "--json") == 0
    assert printed(capsys)["latency"]["requests"] == 2
    assert run(monkeypatch, "preflight", "unknown") == 2
    assert "unknown" in capsys.readouterr().err


def test_preflight_without_a_route_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "preflight") == 2
    assert capsys.readouterr().err.strip().endswith("there is no route. Name a route, or give --policy FILE.")


@pytest.mark.parametrize(("text", "found"), [("24G", 24 * 2**30), ("512MiB", 2**29), ("1.5 kb", 1536), ("100", 100)])
def test_memory_is_read_in_powers_of_1024(text: str, found: float) -> None:
    assert parse_bytes(text) == found


@pytest.mark.parametrize("text", ["", "G", "-3G", "0", "nan", "inf", "24X"])
def test_memory_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no amount of memory"):
        parse_bytes(text)


def test_a_sweep_recommends_writes_draws_and_verifies(
    target: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, patch, words = tmp_path / "s.svg", tmp_path / "new.yaml", files(tmp_path, target)
    asked = ["--concurrency", "2,1", "--exit-layer", "1", "--picture", str(picture), "--write", str(patch), "--verify", "--json"]
    assert run(monkeypatch, "sweep", *words, *asked) == 0
    found = printed(capsys)
    assert (found["answers"], found["concurrencies"]) == (3, [1, 2])
    assert [d["drafter"] for d in found["drafters"]] == ["ngram 3", "ngram 2", "ngram 4", "ngram 1", "early_exit 1"]
    assert {p["k"] for p in found["drafters"][0]["predictions"]} == set(range(17))
    root = ElementTree.parse(picture).getroot()
    assert len(root.findall(".//{http://www.w3.org/2000/svg}polyline")) == 5 * 2
    gained = found["recommended"]["k"] > 0
    assert patch.exists() == gained
    assert [m["concurrency"] for m in found["measured"]] == ([1, 2] if gained else [])
    (run_file,) = (home / "sweeps").glob("tiny-*.jsonl")
    assert len(run_file.read_text().splitlines()) == 3
    if gained:
        assert run(monkeypatch, "policy", "diff", str(patch), "--against", str(tmp_path / "p.yaml"), "--json") == 0
        assert {c["path"].rsplit(".", 1)[0] for c in printed(capsys)["changes"]} <= {"subject.drafter"}


def test_a_sweep_shows_its_curve_in_the_terminal_and_as_a_page(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "s.html"
    run(monkeypatch, "sweep", *files(tmp_path, target, count=2), "--picture", str(page))
    said = capsys.readouterr().out
    for part in ("measured", "predicted", "replayed on the recorded text", "Recommended:"):
        assert part in said
    assert page.read_text().startswith("<!doctype html>")
    assert "http" not in page.read_text().replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--concurrency", "0"], "no list of numbers"),
        (["--concurrency", "1,x"], "no list of numbers"),
        (["--picture", "s.png"], "End the name in .svg or .html"),
        (["--picture", "s"], "End the name in .svg or .html"),
    ],
)
def test_what_a_sweep_cannot_do_is_told_before_anything_is_loaded(
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(wiring, "open_sweep", None)
    assert run(monkeypatch, "sweep", *files(tmp_path, target), *words) == 2
    assert said in capsys.readouterr().err


def test_a_sweep_without_prompts_has_no_data(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "sweep", *files(tmp_path, target, count=0)) == 4
