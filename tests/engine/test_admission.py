"""A long prompt in pieces: the same tokens as the whole one, while the others step on; what fails fails alone."""

from __future__ import annotations

import pytest
import torch

from canary.domain.errors import EngineMemoryError
from canary.engine.admission import TOGETHER, WHOLE, Pieces, Waiting
from canary.engine.decode import Decoder
from canary.engine.forward import RowForward
from canary.engine.requests import Job
from tests.engine.tiny import DRAFTERS, job, prompts, run_all, tiny_model, tiny_tokenizer

MODEL = tiny_model(eos=False, loopy=True, seed=3)
PIECES = Pieces(above=12, size=5)


def loop(pieces: Pieces, drafter: str = "none", rows: int = 3, most: int | None = None) -> Decoder:
    target = RowForward(MODEL, rows)
    proposing = DRAFTERS[drafter](MODEL, target)
    k = 0 if proposing is None else 3
    return Decoder(target, tiny_tokenizer(), frozenset(), proposing, k, most=most, pieces=pieces)


def jobs(temperature: float = 0.0, new: int = 6) -> list[Job]:
    """Prompts of 2 to 60 tokens, more than half of them long."""
    found = prompts(7, seed=11, shortest=2, longest=60)
    assert 2 < sum(len(ids) > PIECES.above for ids in found) < 7
    return [job(i, ids, new + i, temperature=temperature) for i, ids in enumerate(found)]


@pytest.mark.parametrize(
    ("drafter", "temperature"),
    [("none", 0.0), ("ngram", 0.9), ("draft_model", 0.0), ("early_exit", 0.9), ("heads", 0.9), ("composite", 0.0)],
)
def test_pieces_change_no_token(drafter: str, temperature: float) -> None:
    asked = jobs(temperature)
    wanted = [(r.token_ids, r.accepted) for r in run_all(loop(WHOLE, drafter), asked)]
    pieces = loop(PIECES, drafter)
    assert [(r.token_ids, r.accepted) for r in run_all(pieces, asked)] == wanted
    assert pieces.target.lengths == [0] * 3


def test_one_row_takes_its_pieces_alone() -> None:
    asked = jobs(0.9, new=4)
    wanted = [r.token_ids for r in run_all(loop(WHOLE), asked)]
    assert [r.token_ids for r in run_all(loop(PIECES, most=1), asked)] == wanted


def test_the_others_step_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    one = loop(PIECES, rows=2)
    seen: list[str] = []
    piece, step = one.target.prefill_chunk, one.target.step

    def told(row: int, *more: object) -> torch.Tensor | None:
        seen.append("piece")
        return piece(row, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(one.target, "prefill_chunk", told)
    monkeypatch.setattr(one.target, "step", lambda tokens: seen.append(f"step {len(tokens)}") or step(tokens))
    short, long = job(0, [5, 6, 7], 6), job(1, list(range(10, 33)), 3)
    run_all(one, [short, long])
    assert seen[:10] == ["piece", "step 1"] * 4 + ["piece", "step 2"]


def test_short_prompts_pass_a_long_one_and_a_second_long_one_waits() -> None:
    one = loop(PIECES, rows=3)
    asked = [job(0, list(range(10, 60)), 2), job(1, [5, 6, 7], 2), job(2, [5, 6, 8], 2), job(3, list(range(9, 30)), 2)]
    ended = [r.job.index for r in one.run(asked)]
    assert (set(ended[:2]), ended[2:]) == ({1, 2}, [0, 3])


def test_the_longest_answers_come_first_and_whole_prompts_together() -> None:
    news, sizes = (3, 9, 9, 1, 5), (4, 4, 30, 4, 4)
    asked = [job(i, list(range(2, 2 + size)), new) for i, (new, size) in enumerate(zip(news, sizes, strict=True))]
    waiting = Waiting(asked, PIECES, together=True)
    groups = []
    while waiting:
        groups.append([j.index for j in waiting.take(3, filling=False)])
    assert groups == [[1], [2], [4, 0, 3]], "one that comes in pieces comes alone"
    alone = Waiting(asked, WHOLE, together=False)
    assert [[j.index for j in alone.take(3, filling=False)] for _ in asked] == [[1], [2], [4], [0], [3]]
    assert not alone
    assert Waiting(asked[2:3], PIECES, together=True).take(1, filling=True) == []
    assert Waiting(asked, WHOLE, together=True).take(0, filling=False) == []


def test_prompts_are_filled_together_up_to_a_bound() -> None:
    large = [job(i, [3] * (TOGETHER // 2), 4) for i in range(5)]
    waiting = Waiting(large, WHOLE, together=True)
    assert [len(waiting.take(5, filling=False)) for _ in range(3)] == [2, 2, 1]
    whole = Waiting([job(0, [3] * (TOGETHER + 1), 4)], WHOLE, together=True)
    assert len(whole.take(5, filling=False)) == 1, "a prompt beyond the bound comes alone"


@pytest.mark.parametrize("drafter", ["none", "draft_model"])
@pytest.mark.parametrize("at", [0, 2])
def test_a_piece_without_memory_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch, drafter: str, at: int) -> None:
    asked = jobs()
    wanted = [r.token_ids for r in run_all(loop(PIECES, drafter), asked)]
    one = loop(PIECES, drafter)
    piece, calls = one.target.prefill_chunk, iter(range(1000))

    def failing(row: int, *more: object) -> torch.Tensor | None:
        if next(calls) == at:
            raise EngineMemoryError("there is no memory for a forward", where="shadow.batch_size", remedy="Lower it.")
        return piece(row, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(one.target, "prefill_chunk", failing)
    done = run_all(one, asked)
    assert [r.finish_reason for r in done].count("error") == 1
    assert all(r.token_ids == wanted[r.job.index] for r in done if r.error is None)
    monkeypatch.undo()
    assert [r.token_ids for r in run_all(one, asked)] == wanted


def test_a_run_that_is_left_leaves_its_rows_free() -> None:
    one = loop(PIECES)
    running = one.run([job(0, [5, 6, 7], 2), job(1, list(range(10, 60)), 30)])
    next(running)
    assert any(one.target.lengths)
    running.close()
    assert one.target.lengths == [0] * 3
    asked = jobs()
    assert [r.token_ids for r in run_all(one, asked)] == [r.token_ids for r in run_all(loop(WHOLE), asked)]
