"""Every bet and certificate of the losslessness battery over 10,000 random and degenerate rows, for both kinds of drafts."""

from __future__ import annotations

import pytest
import torch

from canary.domain.pairs import DrafterKind
from tests.stats.enumerate_many import EXACT, random_rows, worst

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]

BATCH, BATCHES = 500, 20


@pytest.mark.parametrize("kind", list(DrafterKind))
def test_every_bet_has_mean_at_most_one(kind: DrafterKind) -> None:
    torch.set_num_threads(1)
    largest: dict[str, float] = {}
    for seed in range(BATCHES):
        for name, value in worst(random_rows(BATCH, kind, 100 + seed)).items():
            largest[name] = max(largest.get(name, 0.0), value)
    print(f"\n{kind}: {len(largest)} bets over {BATCH * BATCHES} rows, largest mean 1 + {max(largest.values()) - 1:.2g}")
    assert {name: value for name, value in largest.items() if value > 1 + EXACT} == {}
