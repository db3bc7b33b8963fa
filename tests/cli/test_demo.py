"""The demo's own code on a tiny model: real listener, real worker process, real Postgres; then the same seed again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from canary import wiring
from canary.cli import demo as demo_module
from canary.cli import main
from canary.cli.demo.report import RouteView, equivalence
from canary.cli.demo.routes import FULL_TOUR, SHORT_TOUR, DemoRoute
from canary.domain.policy import Policy
from canary.flow.tools.policy_files import load_text
from tests.flow import tiny_walk

TOUR = (DemoRoute("tiny", "creative", limit=6), DemoRoute("tiny-drill", "creative", limit=12))


@pytest.fixture
def tiny_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A demo of two tiny routes, one of them with a fault, in a home of its own."""
    target = tiny_walk.model_dir(tmp_path)

    def policy(route: str) -> tuple[Policy, str]:
        text = tiny_walk.policy_text(target, route=route, fault="uniform_zero" if "drill" in route else None)
        return load_text(text), text

    monkeypatch.setattr(demo_module, "SHORT_TOUR", TOUR)
    monkeypatch.setattr(demo_module, "_policy", policy)
    monkeypatch.setenv("CANARY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CANARY_DATABASE_URL", "postgresql://127.0.0.1:1/ignored")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    wiring.settings.cache_clear()
    yield tmp_path / "home"
    wiring.settings.cache_clear()


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, object]]:
    monkeypatch.setattr("sys.argv", ["canary", "demo", "--json", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    routes = json.loads(capsys.readouterr().out)["routes"]
    assert isinstance(routes, dict)
    return routes


def test_the_walk_ends_by_itself_and_the_same_seed_reprints(
    tiny_demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(monkeypatch, capsys, "--seed", "7")
    assert first["tiny"]["pairs"] == 6
    assert (first["tiny"]["stage"], first["tiny"]["weight"]) == ("shadow", 0)
    assert (first["tiny-drill"]["stage"], first["tiny-drill"]["weight"]) == ("killed", 0)
    assert int(str(first["tiny-drill"]["pairs"])) < 12, "shadow on a killed route stops"
    again = run(monkeypatch, capsys, "--seed", "7")
    assert again["tiny"]["pairs"] == 6
    assert again["tiny-drill"]["killed"] == first["tiny-drill"]["killed"]
    assert (tiny_demo / "demo" / "7" / "postgres").is_dir()


def test_the_tours_are_what_the_help_says() -> None:
    assert [r.name for r in SHORT_TOUR] == ["math", "creative", "math-drill"]
    sent = {r.name: len(r.bodies()) for r in FULL_TOUR}
    assert sent["math-drill"] == sent["creative"] == 60
    assert min(sent["math"], sent["rag"]) >= 140
    assert sent["faq"] == 200
    drill = json.loads(FULL_TOUR[-1].bodies()[0][1])
    assert drill["temperature"] == 1.0


def test_a_route_without_evidence_says_so() -> None:
    policy, _ = demo_module._policy("math")
    view = RouteView(policy, sent=3)
    assert equivalence(view) == "no data yet"
    assert not view.settled
