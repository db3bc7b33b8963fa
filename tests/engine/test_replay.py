"""The replay of an answer through k = 0: silent on exact rows, loud from the first stale key on, and never in another's way."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from canary.domain.pairs import Arm, Columns
from canary.domain.policy import Drafter, Shadow, Subject
from canary.domain.traffic import SamplingParams
from canary.engine import replay as module
from canary.engine.forward import RowForward
from canary.engine.replay import REPLAY_SHARE, is_chosen, replay, with_replay
from canary.engine.runner import OwnEngine
from canary.engine.trace import pack
from tests.engine.test_runner import column, requests
from tests.engine.tiny import decoder, job, run_all, save_tiny, tiny_model

SAMPLED = SamplingParams(24, temperature=0.7)


@pytest.fixture
def everything_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPLAY_SHARE", 1.0)


def test_a_tenth_is_chosen_and_a_retry_chooses_alike() -> None:
    keys = [hashlib.blake2b(bytes([i % 256, i // 256]), digest_size=16).digest() for i in range(4000)]
    chosen = [is_chosen(key) for key in keys]
    assert abs(np.mean(chosen) - REPLAY_SHARE) < 0.02
    assert chosen == [is_chosen(key) for key in keys]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_an_exact_engine_replays_its_own_rows(temperature: float) -> None:
    loop = decoder(tiny_model(eos=False, loopy=True), "ngram")
    running = run_all(loop, [job(i, [5, 6, 7, 5, 6], temperature=temperature) for i in range(3)], traced=True)
    assert sum(sum(each.accepted) for each in running) > 0
    for each in running:
        assert each.record is not None
        found = replay(loop.target, each.job.token_ids, each.token_ids, each.record.rows(), each.job.params)
        assert found.shape == (len(each.token_ids),)
        assert float(found.max()) < 1e-4
    assert not any(loop.target.lengths)


def test_a_stale_key_shows_where_it_begins_and_not_before() -> None:
    """The rows of another text from token 10 on, as if rejected drafts had stayed in the cache."""
    model = tiny_model(eos=False)
    target, prompt = RowForward(model, 2), [5, 6, 7]
    answer = torch.randint(3, 90, (20,), generator=torch.Generator().manual_seed(0)).tolist()
    seen = [*answer[:9], 11, *answer[10:]]  # the engine believed that token 9 was another one
    with torch.inference_mode():
        clean = model(torch.tensor([prompt + answer])).logits[0, 2:-1]
        stale = torch.cat([clean[:10], model(torch.tensor([prompt + seen])).logits[0, 12:-1]])
    found = replay(target, prompt, answer, stale, SAMPLED)
    assert float(found[:10].max()) < 1e-4
    assert float(found[10]) > 0.05
    assert float(replay(target, prompt, answer, clean, SAMPLED).max()) < 1e-4


def test_distances_are_taken_at_the_requests_temperature() -> None:
    model, prompt, answer = tiny_model(eos=False), [5, 6], [7, 8]
    with torch.inference_mode():
        clean = model(torch.tensor([prompt + answer])).logits[0, 1:-1]
    shifted = clean + torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
    for temperature, used in ((0.5, 0.5), (0.0, 1.0)):
        found = replay(RowForward(model, 1), prompt, answer, shifted, SamplingParams(4, temperature=temperature))
        wanted = 0.5 * ((clean / used).softmax(-1) - (shifted / used).softmax(-1)).abs().sum(-1)
        assert torch.allclose(found.float(), wanted, atol=1e-5)


def test_a_target_in_use_is_refused() -> None:
    target = RowForward(tiny_model(), 2)
    target.lengths[1] = 3
    with pytest.raises(ValueError, match="to itself"):
        replay(target, [5], [6], torch.zeros(1, 97), SAMPLED)


def test_the_column_stands_beside_the_others() -> None:
    rows = pack({"row_tv": torch.zeros(2), "logit_gap": torch.zeros(2), "temperature": torch.ones(2)})
    both = Columns.from_bytes(with_replay(rows, torch.tensor([0.25, 0.5])).to_bytes())
    assert column(both, "replay_tv")[:, 0].tolist() == [0.25, 0.5]
    assert column(both, "temperature")[:, 0].tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("everything_is_chosen")
def test_the_engine_replays_chosen_candidates_alone(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", tiny_model(loopy=True, seed=3))
    subject = Subject("own", str(target), Drafter("ngram", 4), "float32")
    engine = OwnEngine.open(subject, Shadow(batch_size=3, max_tokens=20), Path("/nonexistent-cache"))
    for got in engine.generate(requests(), Arm.CANDIDATE):
        assert column(got.rows, "replay_tv").max() < 1e-4
        assert column(got.rows, "replay_tv").shape == column(got.rows, "row_tv").shape
        assert set(column(got.rows, "temperature").ravel().tolist()) == {1.0}
    assert all("replay_tv" not in got.rows.data for got in engine.generate(requests(), Arm.BASELINE) if got.rows)
    bad = replace(requests(1)[0], prompt=replace(requests(1)[0].prompt, messages=(), text=""))
    (failed,) = engine.generate([bad], Arm.CANDIDATE)
    assert failed.rows is None
