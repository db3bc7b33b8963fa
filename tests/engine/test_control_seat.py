"""The candidate's seat of an A/A pair: k = 0 on the same rows, traced, and never more of them together than asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from canary.domain.pairs import ALTERNATIVES, TRACE_COLUMNS, Arm, Provenance
from canary.engine.runner import OwnEngine
from tests.engine.test_runner import SHADOW, column, requests, subject
from tests.engine.tiny import save_tiny, tiny_model


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> OwnEngine:
    target = save_tiny(tmp_path_factory.mktemp("models") / "target", tiny_model(loopy=True, seed=3))
    return OwnEngine.open(subject(target), replace(SHADOW, control_batch_size=2), Path("/nonexistent-cache"))


def test_it_draws_the_baselines_tokens_and_traces_them(engine: OwnEngine) -> None:
    asked = requests()
    plain = engine.generate(asked, Arm.BASELINE)
    found = engine.generate([replace(r, control=True) for r in asked], Arm.CANDIDATE)
    assert [g.token_ids for g in found] == [g.token_ids for g in plain]  # the same keys; in a pair each seat has its own
    for got in found:
        assert (got.arm, got.error, got.stats.num_speculative_tokens) == (Arm.CANDIDATE, None, 0)
        assert got.trace is not None
        assert set(got.trace.data) == set(TRACE_COLUMNS)
        assert set(column(got.trace, "provenance").ravel()) == {Provenance.PLAIN}
        assert not column(got.trace, "drafted").any()
        ratios = column(got.trace, "log_ratio")
        assert np.abs(ratios[:, ALTERNATIVES.index("draft")]).max() == 0
        assert np.abs(ratios[:, ALTERNATIVES.index("hot")]).max() > 0
        assert column(got.rows, "row_tv").max() < 1e-4
    assert all(g.trace is None for g in plain)


def test_no_more_than_the_control_batch_size_run_together(engine: OwnEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    rows = engine._plain_rows
    step = rows.step

    def counted(tokens):  # type: ignore[no-untyped-def]
        sizes.append(len(tokens))
        return step(tokens)

    monkeypatch.setattr(rows, "step", counted)
    engine.generate(requests(), Arm.BASELINE)
    most = max(sizes)
    sizes.clear()
    engine.generate([replace(r, control=True) for r in requests()], Arm.CANDIDATE)
    assert (most, max(sizes)) == (3, 2)


def test_kinds_share_no_batch_and_the_pass_is_timed_without_drafts(engine: OwnEngine) -> None:
    one, other, *_ = requests()
    with pytest.raises(ValueError, match="do not share a batch"):
        engine.generate([one, replace(other, control=True)], Arm.CANDIDATE)
    timing = engine.time_block([replace(one, control=True)], Arm.CANDIDATE)
    assert timing.num_tokens == len(engine.generate([one], Arm.BASELINE)[0].token_ids)
