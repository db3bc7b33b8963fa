"""Log-probabilities are told for every emitted token, raw and processed by name, and a wrong one fails its request."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from canary.domain.errors import IdentityError
from canary.engine import reference
from canary.engine.faults import FAULTS
from canary.engine.hooks import CLEAN
from canary.engine.requests import Running
from canary.engine.score import score
from tests.engine.asking import expected_rows
from tests.engine.tiny import decoder, job, prompts, run_all, tiny_model

PROMPTS = prompts(4, seed=3, shortest=8)
MODEL: PreTrainedModel = tiny_model("llama", loopy=True, seed=3, eos=False)
SHAPED = {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "bad_words": ("a",)}


def scored(running: Running) -> None:
    kept = running.record
    assert kept is not None
    args = (MODEL, running.job.token_ids, running.token_ids, kept.rows(), running.job.params, kept.processed_rows())
    score(*args, shaping=running.shaping, told=running.logprobs)


@pytest.mark.parametrize("drafter", ["none", "ngram", "draft_model"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_they_are_those_of_the_tokens_own_rows(drafter: str, temperature: float) -> None:
    loop = decoder(MODEL, drafter)
    jobs = [job(i, p, 12, temperature=temperature, top_k=9, logprobs=(3, 0)[i % 2], **SHAPED) for i, p in enumerate(PROMPTS)]
    for running in run_all(loop, jobs, traced=True):
        assert running.record is not None
        assert len(running.logprobs) == len(running.token_ids) == 12
        raw = running.record.rows().log_softmax(-1)
        if temperature:
            processed = expected_rows(running).log()
        else:
            rows = reference.shaped(running.shaping, running.job.token_ids, running.token_ids, running.record.rows())
            processed = rows.log_softmax(-1)
        for at, (told, token) in enumerate(zip(running.logprobs, running.token_ids, strict=True)):
            assert told.raw == pytest.approx(float(raw[at, token]), abs=1e-5)
            assert told.processed == pytest.approx(float(processed[at, token]), abs=1e-5)
            most = running.job.params.logprobs
            for top, row in ((told.top_raw, raw[at]), (told.top_processed, processed[at])):
                best = row.topk(most or 1)
                assert [t for t, _ in top] == best.indices.tolist()[: len(top)]
                assert [v for _, v in top] == pytest.approx(best.values.tolist()[: len(top)], abs=1e-5)
            assert len(told.top_raw) == most
        scored(running)


def test_a_greedy_token_is_not_certain_and_the_two_kinds_differ() -> None:
    (running,) = run_all(decoder(MODEL, "ngram"), [job(0, PROMPTS[0], 12, logprobs=2, repetition_penalty=1.5)])
    assert all(each.processed < 0 for each in running.logprobs)
    assert any(abs(each.processed - each.raw) > 0.05 for each in running.logprobs)


def test_only_who_asked_is_told_and_tokens_without_mass_are_not() -> None:
    jobs = [job(i, p, 8, temperature=1.0, top_k=2, logprobs=5 if i == 1 else None) for i, p in enumerate(PROMPTS)]
    done = run_all(decoder(MODEL, "draft_model"), jobs)
    assert [len(r.logprobs) for r in done] == [0, 8, 0, 0]
    assert {len(each.top_raw) for each in done[1].logprobs} == {5}
    assert {len(each.top_processed) for each in done[1].logprobs} == {2}
    assert [r.token_ids for r in done] == [
        r.token_ids
        for r in run_all(decoder(MODEL, "draft_model"), [job(i, p, 8, temperature=1.0, top_k=2) for i, p in enumerate(PROMPTS)])
    ]


def test_what_is_cut_is_not_told() -> None:
    loop = decoder(MODEL, "target_itself")
    free = run_all(loop, [job(0, PROMPTS[1], 12)])[0].token_ids
    (done,) = run_all(loop, [job(0, PROMPTS[1], 12, stop_token_ids=(free[3],), logprobs=1)])
    assert len(done.logprobs) == len(done.token_ids) == free.index(free[3]) + 1
    assert done.num_cut > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["logprobs_zero", "logprobs_of_next_row"])
def test_a_wrong_one_breaks_an_identity(name: str, temperature: float) -> None:
    loop = decoder(MODEL, "target_itself")
    loop.hooks = FAULTS[name].inject(CLEAN)
    (running,) = run_all(loop, [job(0, PROMPTS[0], 12, temperature=temperature, logprobs=2)], traced=True)
    with pytest.raises(IdentityError, match=r"raw log-probability of token \d+ was told as"):
        scored(running)


def test_a_missing_one_breaks_an_identity() -> None:
    (running,) = run_all(decoder(MODEL), [job(0, PROMPTS[0], 5, logprobs=0)], traced=True)
    running.logprobs.pop()
    with pytest.raises(IdentityError, match="4 log-probabilities were told for 5 tokens"):
        scored(running)


def test_a_request_that_changes_logits_cannot_be_scored_without_its_shaping() -> None:
    (running,) = run_all(decoder(MODEL), [job(0, PROMPTS[0], 2, presence_penalty=1.0)])
    with pytest.raises(ValueError, match="shaping is needed"):
        score(MODEL, PROMPTS[0], running.token_ids, torch.zeros(2, 97), running.job.params)
