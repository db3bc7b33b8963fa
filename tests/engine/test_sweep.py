"""A sweep's tracks against the loop itself: for greedy text the predicted rounds are the very rounds that the loop needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from canary.domain.drafter_policy import VERIFICATIONS
from canary.domain.policy import Drafter, Policy
from canary.engine import sweep_tracks
from canary.engine.decode import Decoder
from canary.engine.drafters.build import Setting, build
from canary.engine.drafters.drawing import Drawing
from canary.engine.forward import RowForward
from canary.engine.hooks import METHODS
from canary.engine.requests import Running
from canary.engine.sweep import Bench, read_bandwidth
from canary.engine.sweep_tracks import Target
from canary.engine.verify_block import block_rule
from canary.flow.tools.sweep_facts import Recorded
from canary.stats.rounds import Track, walk
from tests.engine.tiny import job, noisy_copy, prompts, run_all, save_tiny, tiny_heads, tiny_model, tiny_tokenizer, write_heads
from tests.flow import tiny_walk

MOST = 6
NEW = 20


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    model = tiny_model(eos=False, loopy=True)
    path = save_tiny(tmp_path_factory.mktemp("models") / "target", model)
    return Target(path, model, tiny_tokenizer(), RowForward(model, 2))


@pytest.fixture(scope="module")
def drafters(target: Target, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Drafter]:
    folder = tmp_path_factory.mktemp("drafts")
    model = str(save_tiny(folder / "noisy", noisy_copy(target.model)))
    return {
        "ngram": Drafter("ngram", MOST, max_ngram=2),
        "draft_model": Drafter("draft_model", MOST, model=model),
        "early_exit": Drafter("early_exit", MOST, exit_layer=1),
        "heads": Drafter("heads", MOST, heads=str(write_heads(folder / "heads", tiny_heads(target.model, MOST)))),
        "composite": Drafter("composite", MOST, model=model, fallback="draft_model", max_ngram=2),
    }


def policy(target: Target, drafter: Drafter) -> Policy:
    found = tiny_walk.policy(target.path)
    return replace(found, subject=replace(found.subject, drafter=drafter))


def loop(target: Target, drafter: Drafter, k: int) -> Decoder:
    rows = RowForward(target.model, 1)
    subject = policy(target, replace(drafter, num_speculative_tokens=k)).subject
    built = build(Setting(subject, rows, target.model, target.tokenizer, target.path.parent, Drawing()))
    return Decoder(rows, target.tokenizer, frozenset(), built.drafter, k, hooks=METHODS[drafter.verification])


def answers(target: Target, count: int, **params: object) -> list[tuple[Recorded, Running]]:
    decoder = Decoder(RowForward(target.model, 1), target.tokenizer, frozenset())
    jobs = [job(i, ids, NEW, **params) for i, ids in enumerate(prompts(count, seed=5))]
    return [
        (Recorded(str(r.job.index), r.job.params, r.job.token_ids, tuple(r.token_ids), 0.1, 1.0), r)
        for r in run_all(decoder, jobs)
    ]


def along(target: Target, drafter: Drafter, given: list[Recorded], batches: tuple[int, ...] = (1,)) -> sweep_tracks.Drafted:
    subject = policy(target, drafter).subject
    return sweep_tracks.along(drafter, target, given, batches, MOST, subject, target.path.parent)


@pytest.mark.parametrize("name", ["ngram", "draft_model", "early_exit", "heads", "composite"])
@pytest.mark.parametrize("k", [3])
def test_greedy_rounds_are_predicted_to_the_last_one(name: str, k: int, target: Target, drafters: dict[str, Drafter]) -> None:
    recorded = answers(target, 3)
    drafted = along(target, drafters[name], [a for a, _ in recorded])
    real = run_all(loop(target, drafters[name], k), [r.job for _, r in recorded])
    for track, before, after in zip(drafted.tracks, recorded, real, strict=True):
        assert after.token_ids == list(before[0].token_ids)
        walked = walk(track, k)
        assert walked.rounds == len(after.drafted) - 1
        assert sum(walked.accepted_at) == sum(after.accepted)
        assert walked.num_draft_tokens == sum(after.drafted)


def test_some_drafts_are_accepted_and_some_are_not(target: Target, drafters: dict[str, Drafter]) -> None:
    recorded = [a for a, _ in answers(target, 2)]
    for drafter in drafters.values():
        tracks = along(target, drafter, recorded).tracks
        rounds, tokens = (sum(getattr(walk(t, 4), field) for t in tracks) for field in ("rounds", "tokens"))
        assert 0.2 * tokens < rounds < tokens, drafter.name


def test_a_draft_that_is_the_target_is_always_accepted(target: Target) -> None:
    recorded = [a for a, _ in answers(target, 3, temperature=0.8, top_p=0.9)]
    drafted = along(target, Drafter("draft_model", MOST, model=str(target.path)), recorded)
    for track in drafted.tracks:
        assert walk(track, 4).rounds == -(-(NEW - 1) // 5)
    assert not drafted.replayed
    assert len(drafted.prefill) == 3


@pytest.mark.parametrize("verification", VERIFICATIONS)
@pytest.mark.parametrize("name", ["draft_model", "heads"])
def test_sampled_acceptance_agrees_with_the_loop(
    name: str, verification: str, target: Target, drafters: dict[str, Drafter]
) -> None:
    count, k = {"draft_model": 8, "heads": 4}[name], 3
    drafter = replace(drafters[name], verification=verification)
    recorded = answers(target, count, temperature=0.9)
    tracks = along(target, drafter, [a for a, _ in recorded]).tracks
    real = run_all(loop(target, drafter, k), [replace(r.job, key=(r.job.index, 99)) for _, r in recorded])
    predicted = [walk(track, k).rounds for track in tracks]
    measured = [len(r.drafted) - 1 for r in real]
    error = float(np.sqrt((np.var(predicted) + np.var(measured)) / count))
    assert np.mean(predicted) == pytest.approx(np.mean(measured), abs=4 * error)
    assert np.mean(predicted) < NEW - 1


def test_what_is_scored_as_a_block_is_what_a_block_accepts() -> None:
    """All drafts of three tokens, enumerated: the texts' mean of a survival is the drafts' mean of what accepts so many."""
    torch.manual_seed(0)
    words, k = 4, 3
    target, draft = (torch.softmax(2 * torch.randn(words**k, k + 1, words, dtype=torch.float64), -1) for _ in range(2))
    texts = torch.cartesian_prod(*[torch.arange(words)] * k)  # [words^k, k]
    for rows in (target, draft):  # a row hangs on the tokens before it alone
        for i in range(k + 1):
            for text in range(len(texts)):
                same = int((texts[:, :i] == texts[text, :i]).all(1).nonzero()[0])
                rows[text, i] = rows[same, i]
    p, q = (rows[:, :k].gather(-1, texts[..., None])[..., 0] for rows in (target, draft))  # [words^k, k]
    weights = block_rule(target, texts, torch.full((len(texts),), k), draft[:, :k]).weights
    wanted = (q.prod(1)[:, None] * weights).sum(0)
    ratios = (q / p).numpy()
    scored = [(p.prod(1).numpy()[:, None] * Track.of_ratios(ratios, block=block).survival).sum(0) for block in (True, False)]
    np.testing.assert_allclose(scored[0], wanted.numpy(), rtol=1e-12)
    assert (scored[0][2:] > 1.01 * scored[1][2:]).all(), "more than by token, from the second draft on"


def test_the_draft_cost_is_measured_for_every_batch_and_costs_nothing_for_copies(
    target: Target, drafters: dict[str, Drafter]
) -> None:
    recorded = [a for a, _ in answers(target, 2)]
    assert along(target, drafters["ngram"], recorded).cost is None
    for name in ("draft_model", "early_exit", "heads"):
        cost = along(target, drafters[name], recorded, (1, 2)).cost
        assert cost is not None
        assert {(b, k) for _, b, k in cost.points} == {(b, k) for b in (1, 2) for k in (1, 4, 6)}
        assert min(cost.points.values()) > 0
    assert target.rows.lengths == [0, 0]


def test_the_bench_records_what_the_baseline_says_and_leaves_its_rows_empty(target: Target, tmp_path: Path) -> None:
    bench = Bench.open(tiny_walk.policy(target.path), tmp_path, num_rows=2)
    (prompt,) = tiny_walk.prompts(1, 0.0)
    first, again = bench.record(prompt), bench.record(prompt)
    assert first is not None
    assert again is not None
    assert first.token_ids == again.token_ids
    assert len(first.token_ids) == 12
    assert min(first.prefill_seconds, first.decode_seconds) > 0
    curve = bench.curve((1, 2), 20)
    assert {(b, w) for _, b, w in curve.points} == {(b, w) for b in (1, 2) for w in (1, 2, 3, 5, 9, 17)}
    assert bench.record(replace(prompt, params=replace(prompt.params, max_tokens=0))) is None


def test_the_memory_is_read_at_some_speed() -> None:
    assert read_bandwidth(torch.device("cpu"), 2**20) > 1e6
