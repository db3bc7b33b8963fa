"""No memory in the middle of a batch: one request ends with its reason, the others finish with the tokens they have alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from canary.domain.errors import EngineMemoryError
from canary.domain.traffic import SamplingParams
from canary.engine.decode import Decoder
from canary.engine.requests import Job, Running
from tests.engine.tiny import DRAFTERS, decoder, prompts, tiny_model

JOBS = [Job(i, tuple(ids), SamplingParams(12, temperature=0.0), (0, i)) for i, ids in enumerate(prompts(5, seed=2, shortest=3))]


def run(loop: Decoder) -> dict[int, Running]:
    return {running.job.index: running for running in loop.run(JOBS)}


def failing(function: Callable[..., torch.Tensor], at: set[int]) -> Callable[..., torch.Tensor]:
    """The function, but without memory at these calls, counted from 0."""
    calls = iter(range(10_000))

    def call(*args: object) -> torch.Tensor:
        if next(calls) in at:
            raise EngineMemoryError("there is no memory for a forward", where="shadow.batch_size", remedy="Lower it.")
        return function(*args)

    return call


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("place", ["prefill", "prefill_all", "step"])
def test_one_request_fails_and_the_others_finish(monkeypatch: pytest.MonkeyPatch, drafter: str, place: str) -> None:
    model = tiny_model(eos=False)
    wanted = {i: r.token_ids for i, r in run(decoder(model, drafter, rows=3)).items()}
    loop = decoder(model, drafter, rows=3)
    together = loop.target.prefill_all
    if place != "step":  # what cannot be filled together is filled one by one
        monkeypatch.setattr(loop.target, "prefill_all", failing(together, set(range(9))))
        monkeypatch.setattr(loop.target, "prefill", failing(loop.target.prefill, {1} if place == "prefill" else set()))
    else:
        monkeypatch.setattr(loop.target, "step", failing(loop.target.step, {1}))
    done = run(loop)
    if place == "prefill_all":
        assert {i: r.token_ids for i, r in done.items()} == wanted
        return
    failed = [r for r in done.values() if r.error is not None]
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert [r.finish_reason for r in failed] == ["error"]
    assert "no memory" in str(failed[0].error)
    assert {i: r.token_ids for i, r in done.items() if r.error is None} == {
        i: ids for i, ids in wanted.items() if done[i].error is None
    }
    monkeypatch.undo()
    assert {i: r.token_ids for i, r in run(loop).items()} == wanted, "the loop serves on as if nothing had been"


def test_a_request_without_room_does_not_take_the_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows for all of them do not fit, and those for the longest alone do not either."""
    loop = decoder(tiny_model(eos=False), rows=5)
    reserve, longest = loop.target.cache.reserve, max(loop._reach(job) for job in JOBS)

    def reserved(length: int) -> None:
        if length >= longest:
            raise EngineMemoryError("there is no memory for a row", where="shadow.batch_size", remedy="Lower it.")
        reserve(length)

    monkeypatch.setattr(loop.target.cache, "reserve", reserved)
    done = run(loop)
    failed = [i for i, r in done.items() if r.error is not None]
    assert failed == [i for i, job in enumerate(JOBS) if loop._reach(job) == longest] != []
    assert len(done) == len(JOBS) > len(failed)


def test_a_step_gives_up_its_longest_row(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = decoder(tiny_model(eos=False), rows=5)
    monkeypatch.setattr(loop.target, "step", failing(loop.target.step, {0}))
    failed = [r.job for r in loop.run(JOBS) if r.error is not None]
    assert [len(job.token_ids) for job in failed] == [max(len(job.token_ids) for job in JOBS)]


def test_every_row_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = decoder(tiny_model(eos=False), rows=5)
    monkeypatch.setattr(loop.target, "step", failing(loop.target.step, set(range(5))))
    done = run(loop)
    assert [done[i].finish_reason for i in range(5)] == ["error"] * 5
