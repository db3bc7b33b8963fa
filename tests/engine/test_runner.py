"""The engine behind its port, on a tiny model directory: both arms, traces, scores, timings, fingerprints and bad input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LogitsProcessorList, TemperatureLogitsWarper

from canary.domain.errors import ModelError, UsageError
from canary.domain.pairs import ALTERNATIVES, ROW_COLUMNS, TRACE_COLUMNS, Arm, Columns, DrafterKind
from canary.domain.policy import Drafter, Shadow, Subject
from canary.domain.traffic import Message, Prompt, SamplingParams
from canary.engine.runner import OwnEngine, encode
from canary.engine.score import Remembered, score
from canary.flow.ports import ArmRequest, ShadowEngine
from tests.engine.tiny import noisy_copy, save_tiny, tiny_model, tiny_tokenizer

SHADOW = Shadow(batch_size=3, max_tokens=20)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "target", tiny_model(loopy=True, seed=3))


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "draft", noisy_copy(tiny_model(loopy=True, seed=3)))


def subject(target: Path, **changes: object) -> Subject:
    return replace(Subject("own", str(target), Drafter("ngram", 4), "float32"), **changes)  # type: ignore[arg-type]


def open_engine(what: Subject) -> OwnEngine:
    return OwnEngine.open(what, SHADOW, Path("/nonexistent-cache"))


def requests(count: int = 5, *, temperature: float = 1.0, **more: object) -> list[ArmRequest]:
    params = SamplingParams(30, temperature=temperature, **more)  # type: ignore[arg-type]
    texts = ["again and again and again", "one two three", "why? why? why?", "x", "a longer question about nothing at all"]
    made = []
    for i in range(count):
        prompt = Prompt("s", str(i), "r", "chat/completions", b"", (Message("user", texts[i % 5]),), None, params)
        made.append(ArmRequest(prompt, params, bytes([i]) * 16))
    return made


def column(columns: Columns | None, name: str) -> np.ndarray:
    assert columns is not None
    kind, width = (TRACE_COLUMNS | ROW_COLUMNS)[name]
    return np.frombuffer(columns.data[name], kind).reshape(columns.num_tokens, width)


def test_both_arms_are_complete(target: Path) -> None:
    engine: ShadowEngine = open_engine(subject(target))
    for arm in Arm:
        for got in engine.generate(requests(), arm):
            got.stats.check(len(got.token_ids))
            assert (got.arm, got.error, got.finish_reason in ("stop", "length")) == (arm, None, True)
            assert len(got.token_ids) <= SHADOW.max_tokens
            assert column(got.rows, "row_tv").max() < 1e-4
            assert (got.trace is None) == (arm is Arm.BASELINE)
            if got.trace is not None:
                assert set(got.trace.data) == set(TRACE_COLUMNS)
                assert got.trace.num_tokens == len(got.token_ids)


def test_fp32_greedy_arms_are_equal_and_have_no_gap(target: Path, draft: Path) -> None:
    for drafter in (Drafter("ngram", 4), Drafter("draft_model", 3, model=str(draft))):
        engine = open_engine(subject(target, drafter=drafter))
        baseline, candidate = (engine.generate(requests(temperature=0.0), arm) for arm in Arm)
        assert [g.token_ids for g in baseline] == [g.token_ids for g in candidate]
        assert [g.text for g in baseline] == [g.text for g in candidate]
        assert sum(g.stats.num_accepted_tokens for g in candidate) > 0
        for got in (*baseline, *candidate):
            assert column(got.rows, "logit_gap").max() < 1e-4


def test_distances_are_traced_only_while_calibrating(target: Path) -> None:
    engine = open_engine(subject(target))
    hot = ALTERNATIVES.index("hot")
    first = engine.generate(requests(), Arm.CANDIDATE)
    engine.calibrating = False
    later = engine.generate(requests(), Arm.CANDIDATE)
    assert [g.token_ids for g in first] == [g.token_ids for g in later]
    assert max(column(g.trace, "tv")[:, hot].max() for g in first) > 0
    assert max(column(g.trace, "tv").max() for g in later) == 0
    for a, b in zip(first, later, strict=True):
        assert a.trace is not None
        assert b.trace is not None
        assert a.trace.data["log_ratio"] == b.trace.data["log_ratio"]


def test_an_answer_that_both_arms_gave_is_scored_by_one_forward(target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(target).eval()
    remembered, params = Remembered(), SamplingParams(4, temperature=0.0)
    answers = [(5, 6, 7, 8), (5, 6, 7, 9), (6, 6, 7, 8)]
    logits = torch.randn(4, model.config.vocab_size)
    for answer in answers[:2]:
        score(model, (3, 4), answer, logits, params, None, remembered)
    remembered.next_arm()
    again = [score(model, (3, 4), answer, logits, params, None, remembered) for answer in answers]
    # The last token is judged by the row before it, so that the first two answers share their rows; the third is another text.
    assert remembered.num_forwards == 2
    alone = [score(model, (3, 4), answer, logits, params) for answer in answers]
    assert [each.data for each in again] == [each.data for each in alone]
    remembered.next_arm()
    remembered.next_arm()
    score(model, (3, 4), answers[0], logits, params, None, remembered)
    assert remembered.num_forwards == 3


def test_score_is_the_plain_model(target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(target).eval()
    prompt, answer, temperature = [5, 6, 7], [8, 9, 10, 11], 0.6
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + answer])).logits[0, 2:-1]
    shifted = logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    warp = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    wanted = [
        0.5 * (warp(torch.zeros(1, 1), a[None]).softmax(-1) - warp(torch.zeros(1, 1), b[None]).softmax(-1)).abs().sum().item()
        for a, b in zip(logits, shifted, strict=True)
    ]
    sampled = SamplingParams(4, temperature=temperature)
    rows = score(model, prompt, answer, shifted, sampled)
    assert np.allclose(column(rows, "row_tv")[:, 0], wanted, atol=1e-5)
    gaps = (logits.amax(-1) - logits[range(4), answer]).numpy()
    assert np.allclose(column(rows, "logit_gap")[:, 0], gaps, atol=1e-4)
    assert column(score(model, prompt, answer, logits, SamplingParams(4, temperature=0.0)), "row_tv").max() < 1e-5


@pytest.mark.parametrize("params", [{"temperature": 0.5}, {"temperature": 1.0, "top_k": 3}, {"temperature": 1.0, "top_p": 0.5}])
def test_a_skipped_parameter_makes_every_row_an_outlier(
    target: Path, monkeypatch: pytest.MonkeyPatch, params: dict[str, float]
) -> None:
    engine, asked = open_engine(subject(target)), requests(2, **params)
    clean = [g.rows for g in engine.generate(asked, Arm.CANDIDATE)]
    monkeypatch.setattr("canary.engine.hooks.sampling.process", lambda logits, rows: logits.float().softmax(-1))
    wrong = [g.rows for g in engine.generate(asked, Arm.CANDIDATE)]
    assert all(rows is not None and column(rows, "row_tv").max() < 1e-3 for rows in clean)
    assert all(rows is not None and (column(rows, "row_tv") == 1).mean() > 0.5 for rows in wrong)


def test_timing_is_positive_ordered_and_untraced(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(subject(target))
    monkeypatch.setattr("canary.engine.record.Step.keep_rows", None)
    monkeypatch.setattr("canary.engine.runner.score", None)
    for arm in Arm:
        got = engine.time_block(requests(1, temperature=0.0), arm)
        assert 0 < got.ttft_seconds <= got.total_seconds
        assert got.num_tokens > 1


def test_a_block_is_timed_together_and_whole(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(subject(target))
    rows, sizes = engine._plain_rows, []
    step = rows.step
    monkeypatch.setattr(rows, "step", lambda tokens: (sizes.append(len(tokens)), step(tokens))[1])
    asked = requests(2, temperature=0.0)
    for arm in Arm:
        sizes.clear()
        together = engine.time_block(asked, arm)
        assert sizes[0] == 2, "every request of the block is in the engine before the first step"
        assert together.concurrency == 2
        assert together.num_tokens == sum(engine.time_block([one], arm).num_tokens for one in asked)
        assert 0 < together.ttft_seconds <= together.total_seconds
    for count in (0, engine._shadow.batch_size + 1):
        with pytest.raises(ValueError, match=f"block of {count} requests"):
            engine.time_block(requests(count, temperature=0.0), Arm.BASELINE)


def test_bad_requests_end_alone(target: Path) -> None:
    engine = open_engine(subject(target))
    good = requests(2)
    long = replace(good[0].prompt, messages=(Message("user", "x" * 400),))
    empty = replace(good[0].prompt, messages=(), text="")
    mixed = [good[0], replace(good[0], prompt=long), replace(good[0], prompt=empty), good[1]]
    got = engine.generate(mixed, Arm.CANDIDATE)
    assert [g.finish_reason == "error" for g in got] == [False, True, True, False]
    assert "context" in (got[1].error or "")
    assert "no tokens" in (got[2].error or "")
    assert [got[0].token_ids, got[3].token_ids] == [g.token_ids for g in engine.generate(good, Arm.CANDIDATE)]


def test_chat_template_and_plain_text(target: Path) -> None:
    words = tiny_tokenizer()
    chat = requests(1)[0].prompt
    text = words.decode(encode(words, chat))
    assert text == "<s>user again and again and again</s><s>assistant "
    plain = replace(chat, messages=(), text="abc")
    assert words.decode(encode(words, plain)) == "abc"


def test_a_template_that_refuses_ends_that_request(target: Path, tmp_path: Path) -> None:
    words = tiny_tokenizer()
    words.chat_template = "{{ raise_exception('no') }}"
    engine = open_engine(subject(save_tiny(tmp_path / "m", tiny_model(), words)))
    (got,) = engine.generate(requests(1), Arm.BASELINE)
    assert "cannot be rendered" in (got.error or "")


def test_fingerprint_changes_with_whatever_changes_outputs(target: Path, draft: Path, tmp_path: Path) -> None:
    other_words = tiny_tokenizer()
    other_words.chat_template += " "
    variants = [
        subject(target),
        subject(draft),
        subject(target, dtype="bfloat16"),
        subject(target, drafter=Drafter("ngram", 3)),
        subject(target, drafter=Drafter("ngram", 4, max_ngram=2)),
        subject(target, drafter=Drafter("draft_model", 4, model=str(draft))),
        subject(target, drafter=Drafter("draft_model", 4, model=str(target))),
        subject(target, fault="resample_from_target"),
        subject(save_tiny(tmp_path / "words", tiny_model(loopy=True, seed=3), other_words)),
    ]
    infos = [open_engine(v).info for v in variants]
    assert len({i.fingerprint for i in infos}) == len(variants)
    assert open_engine(variants[0]).info == infos[0]
    assert [i.drafter_kind for i in infos[4:6]] == [DrafterKind.ONE_HOT, DrafterKind.DENSE]
    assert [i.exact_rows for i in infos[1:3]] == [True, False]


def test_a_fault_reaches_the_candidate_alone(target: Path, draft: Path) -> None:
    dense = Drafter("draft_model", 4, model=str(draft))
    for name, drafter in (
        ("resample_from_target", Drafter("ngram", 4)),
        ("uniform_zero", dense),
        ("greedy_draft_softmax_q", dense),
    ):
        clean, faulty = (open_engine(subject(target, drafter=drafter, fault=f)) for f in (None, name))
        base, same = (e.generate(requests(), Arm.BASELINE) for e in (clean, faulty))
        assert [g.token_ids for g in base] == [g.token_ids for g in same]
        good, bad = (e.generate(requests(), Arm.CANDIDATE) for e in (clean, faulty))
        assert [g.token_ids for g in good] != [g.token_ids for g in bad], name
    with pytest.raises(UsageError, match="nonsense"):
        open_engine(subject(target, fault="nonsense"))
    with pytest.raises(UsageError, match="dense"):
        open_engine(subject(target, fault="greedy_draft_softmax_q"))


def test_unusable_subjects_name_their_field(target: Path, tmp_path: Path) -> None:
    words = tiny_tokenizer()
    words.chat_template = "other"
    other = save_tiny(tmp_path / "other", tiny_model(), words)
    cases = {
        "missing.*config.json": subject(tmp_path / "missing"),
        "subject.dtype": subject(target, dtype="float8"),
        "subject.engine": subject(target, engine="vllm"),
        "subject.drafter.name": subject(target, drafter=Drafter("medusa", 4)),
        "num_speculative_tokens": subject(target, drafter=Drafter("ngram", 0)),
        "max_ngram": subject(target, drafter=Drafter("ngram", 2, max_ngram=0)),
        "subject.drafter.model: a draft_model": subject(target, drafter=Drafter("draft_model", 2)),
        "subject.drafter.model: the draft model's chat template": subject(
            target, drafter=Drafter("draft_model", 2, model=str(other))
        ),
    }
    for words_of_error, what in cases.items():
        with pytest.raises(ModelError, match=words_of_error):
            open_engine(what)


def test_probe_reports_the_whole_curve(target: Path) -> None:
    costs = open_engine(subject(target)).info.verify_costs
    assert list(costs) == [f"{rows}x{width}" for rows in (1, 2) for width in (1, 2, 3, 5, 9)], "of three rows"
    assert all(milliseconds > 0 for milliseconds in costs.values())


def test_one_target_is_loaded_once(target: Path) -> None:
    one, other = open_engine(subject(target)), open_engine(subject(target, fault="resample_from_target"))
    assert one._loaded is other._loaded
    assert one.info.fingerprint != other.info.fingerprint


def test_k_adapts_unless_the_policy_or_a_drill_says_otherwise(target: Path) -> None:
    fixed = replace(subject(target).drafter, adaptive=False)
    engines = {
        "adaptive": open_engine(subject(target)),
        "fixed": open_engine(subject(target, drafter=fixed)),
        "drill": open_engine(subject(target, fault="resample_from_target")),
    }
    assert {name: engine.info.described["adaptive"] for name, engine in engines.items()} == {
        "adaptive": "true",
        "fixed": "false",
        "drill": "false",
    }
    candidate = engines["adaptive"].generate(requests(5), Arm.CANDIDATE)
    baseline = engines["adaptive"].generate(requests(5), Arm.BASELINE)
    assert [c.token_ids for c in candidate] == [b.token_ids for b in baseline], "under the same keys the drafts change no token"
    block = open_engine(subject(target, drafter=replace(subject(target).drafter, verification="block")))
    assert [c.token_ids for c in block.generate(requests(5), Arm.CANDIDATE)] == [b.token_ids for b in baseline]
