"""A recorded attempt gives the evidence that it gave when it was recorded, whoever folds how much of it at a time."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from canary.stats.battery import Battery
from canary.stats.state import State
from tests.stats.golden.recorded import read

CONTEXT, ITEMS, EVIDENCE = read()
BATTERY = Battery(CONTEXT)
AGAIN = "the layout changed: run `python -m tests.stats.golden` and look at what changed"


def test_the_layout_is_the_recorded_one() -> None:
    assert BATTERY.layout.fingerprint == EVIDENCE["layout"], AGAIN


def test_the_evidence_is_the_recorded_one() -> None:
    found = BATTERY.fold(BATTERY.start(), ITEMS).to_json()
    added = np.array([not name.startswith("xreq.") for name in BATTERY.names])
    assert (np.array(found["sums"])[added] == np.array(EVIDENCE["sums"])[added]).all()  # plain additions: the same bits anywhere
    for key in ("folded", "num_pairs", "num_failed", "calibration_hash", "newest_pair_at", "carries"):
        assert found[key] == EVIDENCE[key]
    # Logarithms and exponentials may differ in the last bit between processors.
    assert found["sums"] == pytest.approx(EVIDENCE["sums"], rel=1e-12, abs=1e-12)
    assert found["peaks"] == pytest.approx(EVIDENCE["peaks"], rel=1e-12, abs=1e-12)
    assert found["kill_peak"] == pytest.approx(EVIDENCE["kill_peak"], rel=1e-12)
    assert found["watch"]["statistic"] == pytest.approx(EVIDENCE["watch"]["statistic"], rel=1e-9)
    assert found["kill_peak"] > np.log(100)  # the recorded engine has a wrong residual


@pytest.mark.parametrize("seed", range(6))
def test_any_split_over_folders_replays_to_the_same_bits(seed: int) -> None:
    whole = json.dumps(BATTERY.fold(BATTERY.start(), ITEMS).to_json(), sort_keys=True)
    rng, state = random.Random(seed), BATTERY.start()
    cuts = sorted(rng.sample(range(len(ITEMS) + 1), rng.randrange(2, 40)))
    for low, high in zip([0, *cuts], [*cuts, len(ITEMS)], strict=True):
        state = State.from_json(json.loads(json.dumps(Battery(CONTEXT).fold(state, ITEMS[low:high]).to_json())))
    assert json.dumps(state.to_json(), sort_keys=True) == whole
