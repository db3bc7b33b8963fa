"""Every bet and certificate of the losslessness battery is one, over random and degenerate rows (`tests/prove`: 10,000)."""

from __future__ import annotations

import numpy as np
import pytest

from canary.domain.pairs import DrafterKind
from canary.stats import component_bets
from canary.stats.component_bets import PIT_NAMES
from tests.stats import enumerate_many
from tests.stats.enumerate_many import EXACT, random_rows, worst


@pytest.mark.parametrize("kind", list(DrafterKind))
def test_every_bet_has_mean_at_most_one(kind: DrafterKind) -> None:
    found = worst(random_rows(400, kind, seed=1))
    assert len(found) > 300
    assert {name: value for name, value in found.items() if value > 1 + EXACT} == {}


def test_the_rows_are_of_every_kind() -> None:
    rows = random_rows(400, DrafterKind.DENSE, seed=1)
    p, q = rows.p, rows.q
    assert ((p == 1).any(1)).sum() > 10
    assert ((p == 0).any(1)).sum() > 100
    assert (p == q).all(1).sum() > 10
    assert (np.minimum(p, q).sum(1) == 0).sum() > 10
    assert (np.diff(np.sort(p), axis=1) == 0).any(1).sum() > 100


def test_a_planted_invalid_bet_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stake on a uniform that is not centred, and a verdict bet without its allowance that leans on a wrong threshold."""
    rows = random_rows(50, DrafterKind.DENSE, seed=2)

    def off_centre(table: np.ndarray) -> np.ndarray:
        return np.repeat(1 + 0.5 * (table[..., :1] + 1e-9), len(PIT_NAMES), axis=-1)

    monkeypatch.setattr(enumerate_many.components, "pit_bets", off_centre)
    found = worst(rows)
    assert {name for name, value in found.items() if value > 1 + EXACT} == {"acc_uniform", "draft_pit above", "res_pit above"}
    monkeypatch.undo()
    honest = component_bets.deviations

    def generous(accepted: np.ndarray, threshold: np.ndarray) -> np.ndarray:
        return honest(accepted, 0.97 * threshold)

    monkeypatch.setattr(enumerate_many.components, "deviations", generous)
    assert worst(rows)["acc"] > 1 + EXACT
