"""How answers end, and what a request that cannot run does to the others: nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch

from canary.domain.errors import IdentityError
from canary.domain.pairs import Columns
from canary.domain.traffic import SamplingParams
from canary.engine.requests import Job, Running, Words
from tests.engine.tiny import EOS, decoder, job, prompts, run_all, tiny_model, tiny_tokenizer

PROMPTS = prompts(6, seed=9, shortest=6)


def test_length_limit_cuts_inside_an_accepted_run() -> None:
    """A drafter that ignores its limit has its surplus verified and cut, and the counts still add up."""
    loop = decoder(tiny_model(eos=False), "target_itself", k=5)
    assert loop.drafter is not None
    propose = loop.drafter.propose
    loop.drafter.propose = lambda asked: propose(dataclasses.replace(asked, limits=(5,) * len(asked.limits)))  # type: ignore[method-assign]
    (done,) = run_all(loop, [job(0, PROMPTS[0], 9)])
    stats = done.stats(5)
    assert (len(done.token_ids), done.finish_reason, stats.num_cut) == (9, "length", 4)
    assert stats.accepted == (0, 5, 5)


def test_eos_inside_an_accepted_run_ends_the_answer_and_is_kept() -> None:
    model = tiny_model(eos=False)
    (free,) = run_all(decoder(model, "target_itself"), [job(0, PROMPTS[1], 24)])
    loop = decoder(model, "target_itself", k=4)
    at = next(i for i, t in enumerate(free.token_ids) if i % 5 in (2, 3) and t not in free.token_ids[:i])
    loop.eos_ids = frozenset({free.token_ids[at]})
    (done,) = run_all(loop, [job(0, PROMPTS[1], 24)])
    assert done.token_ids == free.token_ids[: at + 1]
    assert done.finish_reason == "stop"
    assert done.num_cut > 0


@pytest.mark.parametrize("drafter", ["none", "target_itself"])
def test_stop_string_over_several_tokens(drafter: str) -> None:
    model, words = tiny_model(eos=False), tiny_tokenizer()
    (free,) = run_all(decoder(model, drafter), [job(0, PROMPTS[2], 24)])
    text = words.decode(free.token_ids, skip_special_tokens=True)
    stop = text[7:10]
    (done,) = run_all(decoder(model, drafter), [job(0, PROMPTS[2], 24, stop=("never in it~~", stop))])
    end = text.index(stop)
    assert done.text(words) == text[:end]
    assert words.decode(done.token_ids, skip_special_tokens=True) == text[: end + len(stop)]
    assert done.finish_reason == "stop"


def test_stop_beats_length_at_the_last_token_and_length_comes_without_it() -> None:
    model, words = tiny_model(eos=False), tiny_tokenizer()
    (free,) = run_all(decoder(model), [job(0, PROMPTS[2], 8)])
    assert free.finish_reason == "length"
    last = words.decode(free.token_ids[-1:])
    first = words.decode(free.token_ids, skip_special_tokens=True).index(last)
    (done,) = run_all(decoder(model), [job(0, PROMPTS[2], first + 1, stop=(last,))])
    assert (done.finish_reason, len(done.token_ids)) == ("stop", first + 1)


def test_one_token_answers_use_the_prefill_alone() -> None:
    loop = decoder(tiny_model(eos=False), "ngram")
    for done in run_all(loop, [job(i, p, 1) for i, p in enumerate(PROMPTS)]):
        assert done.stats(loop.k).drafted == (0,)
        assert len(done.token_ids) == 1


@pytest.mark.parametrize("drafter", ["none", "ngram", "draft_model"])
def test_requests_that_cannot_run_end_alone(drafter: str) -> None:
    model = tiny_model(eos=False)
    bad = [
        Job(10, (), SamplingParams(5), (1, 1)),
        job(11, [5] * 256),
        job(12, PROMPTS[0], 0),
        Job(13, (), SamplingParams(5), (1, 1), error="the prompt cannot be rendered: x"),
    ]
    good = [job(i, p) for i, p in enumerate(PROMPTS)]
    mixed = [bad[0], *good[:3], bad[1], bad[2], *good[3:], bad[3]]
    done = {r.job.index: r for r in decoder(model, drafter, rows=3).run(mixed)}
    alone = run_all(decoder(model, drafter, rows=3), good)
    assert [done[i].token_ids for i in range(len(good))] == [r.token_ids for r in alone]
    reasons = [done[i].error or "" for i in (10, 11, 12, 13)]
    assert all(done[i].finish_reason == "error" for i in (10, 11, 12, 13))
    assert [word in reason for word, reason in zip(("no tokens", "256", "max_tokens", "rendered"), reasons, strict=True)] == [
        True
    ] * 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_nan_row_fails_alone_and_leaves_nothing_behind(drafter: str, temperature: float) -> None:
    model = tiny_model(eos=False)
    with torch.no_grad():
        model.model.embed_tokens.weight[90] = torch.nan
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        model.lm_head.weight[90] = 0
    good = [job(i, [t for t in p if t != 90], temperature=temperature) for i, p in enumerate(PROMPTS)]
    poison = job(50, [7, 8, 90, 9], temperature=temperature)
    done = {r.job.index: r for r in decoder(model, drafter, rows=2).run([good[0], poison, *good[1:]])}
    assert done[50].finish_reason == "error"
    assert "not a distribution" in (done[50].error or "")
    clean = run_all(decoder(model, drafter, rows=2), good)
    assert [done[i].token_ids for i in range(len(good))] == [r.token_ids for r in clean]


def test_context_ends_an_answer() -> None:
    """A model of 256 positions stops at 256 tokens, drafts near the end included."""
    model = tiny_model(eos=False)
    wanted = model.generate(torch.tensor([[5, 6] * 122]), max_new_tokens=12, do_sample=False)[0, 244:].tolist()
    for drafter in ("none", "ngram", "target_itself"):
        (done,) = run_all(decoder(model, drafter), [job(0, [5, 6] * 122, 100)])
        assert (done.token_ids, done.finish_reason) == (wanted, "length")


def test_counts_add_up_and_a_planted_violation_is_caught() -> None:
    loop = decoder(tiny_model(loopy=True), "ngram")
    done = run_all(loop, [job(i, p, 40, temperature=1.0) for i, p in enumerate(PROMPTS)])
    for running in done:
        stats = running.stats(loop.k)
        assert len(running.token_ids) == stats.num_accepted_tokens + stats.num_steps - stats.num_cut
        assert stats.drafted[0] == 0
    running = max(done, key=lambda r: sum(r.accepted))
    assert sum(running.accepted) > 0
    at = next(i for i, a in enumerate(running.accepted) if a)
    for name, step, change in (("accepted", at, -1), ("accepted", at, 1), ("accepted", at, 9), ("drafted", at, 9)):
        counts = getattr(running, name)
        counts[step] += change
        with pytest.raises(IdentityError):
            running.stats(loop.k)
        counts[step] -= change
    running.num_cut += 1
    with pytest.raises(IdentityError):
        running.stats(loop.k)


def test_a_loop_that_loses_a_token_is_stopped() -> None:
    """The identities are asserted by the loop itself, on every request."""

    def forgetful(running: Running, tokens: Sequence[int], eos_ids: frozenset[int], words: Words) -> list[int]:
        return running.take(tokens[-1:], eos_ids, words)

    loop = decoder(tiny_model(loopy=True, seed=3), "ngram")
    loop.hooks = dataclasses.replace(loop.hooks, take=forgetful)
    with pytest.raises(IdentityError, match="accepted"):
        run_all(loop, [job(i, p, 40) for i, p in enumerate(PROMPTS)])


@pytest.mark.parametrize("drafter", ["ngram", "draft_model", "target_itself"])
def test_trace_describes_every_emitted_token(drafter: str) -> None:
    loop = decoder(tiny_model(loopy=True, eos=False), drafter)
    jobs = [job(i, p, 15, temperature=(1.0, 0.7, 0.0)[i % 3], top_k=(0, 9)[i % 2]) for i, p in enumerate(PROMPTS)]
    for running in run_all(loop, jobs, traced=True):
        assert running.record is not None
        columns, rows = running.record.columns(), running.record.rows()
        assert columns.num_tokens == len(rows) == len(running.token_ids)
        back = Columns.from_bytes(columns.to_bytes())
        assert running.num_cut == 0  # so that every accepted draft and every round's own token was emitted
        assert sum(p == 1 for p in back.data["provenance"]) == sum(running.accepted)
        judged = sum(min(a + 1, d) for a, d in zip(running.accepted, running.drafted, strict=True))
        assert sum(back.data["drafted"]) == judged
        greedy = running.job.greedy
        logits = rows.double() / (1.0 if greedy else running.job.params.temperature)
        if not running.job.params.top_k and not greedy:
            wanted = logits.log_softmax(-1)[range(len(rows)), running.token_ids]
            found = torch.frombuffer(bytearray(back.data["log_prob"]), dtype=torch.float32).double()
            assert torch.allclose(found, wanted, atol=1e-4)
        if greedy:
            assert rows.argmax(-1).tolist() == running.token_ids


def test_stopping_early_frees_the_rows() -> None:
    loop = decoder(tiny_model(eos=False), "ngram", rows=2)
    jobs = [job(i, p) for i, p in enumerate(PROMPTS)]
    walk = loop.run(jobs)
    next(walk)
    walk.close()
    assert [r.token_ids for r in run_all(loop, jobs)] == [r.token_ids for r in run_all(decoder(tiny_model(eos=False)), jobs)]


def test_k_and_drafter_come_together() -> None:
    loop = decoder(tiny_model(), "ngram")
    with pytest.raises(ValueError, match="k = 0"):
        type(loop)(loop.target, loop.words, frozenset({EOS}), loop.drafter, 0)
