"""The sweep on an engine of figures: what it records, recommends, writes and says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from canary.domain.errors import ModelError, NoDataError
from canary.domain.pairs import Arm, Generation, Timing
from canary.domain.policy import Drafter, Policy
from canary.domain.policy_diff import compare
from canary.domain.traffic import Prompt, SamplingParams
from canary.flow.ports import ArmRequest, EngineInfo
from canary.flow.tools.policy_files import load_text
from canary.flow.tools.sweep import MOST, Sweep, drafters_of, label, patched, record, sweep
from canary.flow.tools.sweep_facts import Baseline, Drafted, Recorded, RunFile, key_of
from canary.flow.tools.sweep_verify import verify
from canary.flow.tools.sweep_words import as_body, sentences
from canary.stats.cost import Curve
from canary.stats.rounds import Track
from tests.flow import tiny_walk

DESCRIBED = {"dtype": "float32"}


def quiet(what: str, done: int, total: int) -> None:
    """No progress."""


@dataclass
class Figures:
    """An engine whose every figure is given; acceptance is one rate per drafter."""

    rates: Mapping[str, float]
    slope: float = 0.02  # of the verify curve, in plain steps per further token
    draft_cost: float = 0.0
    stops_after: int | None = None
    multiple: float = 1.5
    ran: list[str] = field(default_factory=list)
    fingerprint: str = "f"
    described: Mapping[str, str] = field(default_factory=lambda: DESCRIBED)

    def record(self, prompt: Prompt) -> Recorded | None:
        if self.stops_after is not None and len(self.ran) >= self.stops_after:
            raise KeyboardInterrupt
        self.ran.append(prompt.request_id)
        if prompt.request_id == "r1":
            return None
        return Recorded(prompt.request_id, SamplingParams(40, temperature=0.7, stop=("x",)), (5, 6), tuple(range(40)), 0.1, 0.4)

    def curve(self, batches: Sequence[int], context: int) -> Curve:
        return Curve({(context, b, w): 0.01 * b * (1 + self.slope * b * (w - 1)) for b in batches for w in (1, 17)})

    def baseline(self, step_seconds: float) -> Baseline:
        return Baseline(step_seconds, 1e8, self.multiple * 1e8 / step_seconds)

    def along(self, drafter: Drafter, answers: Sequence[Recorded], batches: Sequence[int], most: int) -> Drafted:
        if drafter.model == "missing":
            raise ModelError("no such directory", where="subject.drafter.model", remedy="Name another.")
        rate = self.rates.get(label(drafter), 0.0)
        tracks = tuple(Track.of_rates([rate] * (len(a.token_ids) - 1), most) for a in answers)
        cost = Curve({(0, 1, k): self.draft_cost * k for k in (1, most)}) if self.draft_cost and drafter.model else None
        return Drafted(tracks, cost, (), replayed=drafter.name == "ngram")


def policy() -> Policy:
    return tiny_walk.policy(Path("somewhere"))


def swept(engine: Figures, tmp_path: Path, *more: Drafter, together: Sequence[int] = (1,), count: int = 4) -> Sweep:
    chosen = policy()
    answers = record(engine, tiny_walk.prompts(count, 0.0), RunFile(tmp_path / "run.jsonl"), quiet)
    return sweep(chosen, engine, answers, drafters_of(chosen, *more), together, quiet, skipped=count - len(answers))


def test_the_fastest_setting_is_recommended_and_written(tmp_path: Path) -> None:
    found = swept(Figures({"ngram 3": 0.3, "ngram 2": 0.7}), tmp_path)
    chosen = found.recommended
    assert chosen is not None
    assert (chosen.max_ngram, chosen.num_speculative_tokens) == (2, found.swept[1].best)
    assert 3 <= chosen.num_speculative_tokens <= 10
    new = load_text(patched(policy(), found))
    assert new.subject.drafter == chosen
    assert {c.path for c in compare(policy(), new).changes} == {
        "subject.drafter.max_ngram",
        "subject.drafter.num_speculative_tokens",
    }


def test_k_0_is_recommended_where_nothing_gains_and_there_is_nothing_to_write(tmp_path: Path) -> None:
    found = swept(Figures({"ngram 3": 0.02, "ngram 2": 0.01}), tmp_path)
    assert found.recommended is None
    assert found.of_best() == ()
    assert "k = 0" in sentences(found)[0]
    with pytest.raises(NoDataError, match="nothing to write"):
        patched(policy(), found)
    assert as_body(found, [])["recommended"] == {"k": 0}


@pytest.mark.parametrize("slope", [0.0, 0.05, 0.2, 0.6])
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.8])
def test_nothing_that_is_predicted_to_lose_is_ever_recommended(slope: float, rate: float, tmp_path: Path) -> None:
    found = swept(Figures({"ngram 3": rate}, slope=slope), tmp_path, together=(1, 4))
    assert all(p.speedup > 1.0099 for p in found.of_best())
    for each in found.swept:
        assert min(p.speedup for p in each.predictions[each.best]) >= 1


def test_a_drafter_within_one_percent_of_an_earlier_one_does_not_replace_it(tmp_path: Path) -> None:
    found = swept(Figures({"ngram 3": 0.7, "ngram 4": 0.7005}), tmp_path)
    assert found.recommended is not None
    assert found.recommended.max_ngram == 3


def test_a_costly_draft_loses_to_a_copy_and_a_missing_one_is_told(tmp_path: Path) -> None:
    better, missing = Drafter("draft_model", 4, model="better"), Drafter("draft_model", 4, model="missing")
    found = swept(Figures({"draft_model better": 0.7, "ngram 3": 0.5}, draft_cost=0.02), tmp_path, better, missing)
    assert found.recommended is not None
    assert found.recommended.name == "ngram"
    refused = [s for s in found.swept if s.refused]
    assert [s.drafter.model for s in refused] == ["missing"]
    assert "no such directory" in refused[0].refused
    cheap = swept(Figures({"draft_model better": 0.7, "ngram 3": 0.5}), tmp_path, better)
    assert cheap.recommended is not None
    assert cheap.recommended.model == "better"


def test_the_policys_own_drafter_comes_first_and_none_comes_twice() -> None:
    own = policy().subject.drafter
    tried = drafters_of(policy(), Drafter("early_exit", 2, exit_layer=3))
    assert tried[0] == replace(own, num_speculative_tokens=MOST)
    assert [label(d) for d in tried] == ["ngram 3", "ngram 2", "ngram 4", "ngram 1", "early_exit 3"]
    assert {d.adaptive for d in tried} == {own.adaptive} == {False}, "whether k adapts is not the sweep's to change"


def test_what_was_recorded_before_a_stop_is_not_run_again(tmp_path: Path) -> None:
    prompts, run = tiny_walk.prompts(5, 0.0), RunFile(tmp_path / "sweeps" / "run.jsonl")
    stopped = Figures({}, stops_after=3)
    with pytest.raises(KeyboardInterrupt):
        record(stopped, prompts, run, quiet)
    with run.path.open("a") as file:
        file.write('{"key": "half a li')
    second = Figures({})
    answers = record(second, prompts, RunFile(run.path), quiet)
    assert stopped.ran == ["r0", "r1", "r2"]
    assert second.ran == ["r1", "r3", "r4"]  # r1 cannot run, and is asked again
    assert [a.request_id for a in answers] == ["r0", "r2", "r3", "r4"]
    assert answers[0].params.stop == ("x",)


def test_another_body_under_the_same_id_is_another_request() -> None:
    (one,) = tiny_walk.prompts(1, 0.0)
    assert key_of(one) != key_of(replace(one, body=one.body + b" "))


def test_another_engine_or_length_is_another_run(tmp_path: Path) -> None:
    names = {RunFile.named(tmp_path, "r", f, n).path for f in ("a", "b") for n in (1, 2)}
    assert len(names) == 4


def test_no_answer_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(NoDataError, match="no prompt gave"):
        record(Figures({}), [], RunFile(tmp_path / "run.jsonl"), quiet)


def test_a_slow_baseline_an_oversized_k_and_skipped_prompts_are_told(tmp_path: Path) -> None:
    loud = sentences(swept(Figures({"ngram 3": 0.05}, slope=0.3, multiple=4.0), tmp_path))
    assert any("A slow baseline makes speculation look good" in s and "4.0 times" in s for s in loud)
    assert any("k = 3 with ngram 3 is oversized" in s for s in loud)
    assert any(s.startswith("1 prompts could not be run") for s in loud)
    calm = sentences(swept(Figures({"ngram 3": 0.8}), tmp_path, count=1))
    assert not any("slow baseline" in s or "oversized" in s or "could not" in s for s in calm)


def test_every_figure_says_where_it_comes_from(tmp_path: Path) -> None:
    body = as_body(swept(Figures({"draft_model d": 0.5}), tmp_path, Drafter("draft_model", 4, model="d")), [])
    drafters = {d["drafter"]: d for d in body["drafters"]}  # type: ignore[attr-defined]
    assert drafters["ngram 3"]["acceptance_basis"].startswith("replayed")
    assert drafters["draft_model d"]["acceptance_basis"].startswith("scored")
    assert {d["speed_basis"] for d in drafters.values()} == {"predicted"}
    assert {p["basis"] for p in body["verify_curve"]} == {"measured"}  # type: ignore[attr-defined]


class Clocked:
    """An engine whose baseline takes two seconds a token and whose candidate takes one."""

    info = EngineInfo("f", None, 1, True, 9, {})  # type: ignore[arg-type]
    calibrating = False

    def __init__(self) -> None:
        self.asked: list[tuple[Arm, int]] = []

    def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> Sequence[Generation]:
        raise AssertionError("a traced pass is never timed")

    def time_block(self, requests: Sequence[ArmRequest], arm: Arm) -> Timing:
        self.asked.append((arm, len(requests)))
        assert max(r.params.max_tokens for r in requests) <= 7
        return Timing(0.1, 10.0 * (2 if arm is Arm.BASELINE else 1), 10, len(requests))


def test_the_recommendation_is_measured_in_turns(tmp_path: Path) -> None:
    engine = Clocked()
    found = verify(engine, tiny_walk.prompts(7, 0.0), 1.8, 2, 7, quiet)
    assert (found.blocks, found.speedup, found.middle, found.lowest, found.highest) == (3, 2.0, 2.0, 2.0, 2.0)
    assert found.error == pytest.approx(-0.1)
    base, spec = Arm.BASELINE, Arm.CANDIDATE
    assert [arm for arm, _ in engine.asked] == [base, spec, base, spec, spec, base, base, spec]
    with pytest.raises(NoDataError, match="no block of 8"):
        verify(engine, tiny_walk.prompts(7, 0.0), 1.8, 8, 7, quiet)
