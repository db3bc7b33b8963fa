"""Acceptance on live traffic against the shadow's reference: a fall in one load band is seen, and a change of load is none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from canary.domain.evidence import GateEvidence, GateRole, Source, Verdict
from canary.domain.facts import DRIFT_GATE
from canary.domain.observations import Observation
from canary.domain.pairs import Arm
from canary.domain.policy import Gates
from canary.stats.live import LiveContext, LiveState, fold
from canary.stats.live_drift import band, words
from canary.stats.live_gates import judge
from canary.stats.reference import reference_of
from tests.stats.drafting import RATES, frozen, requests
from tests.stats.live_traffic import CONTEXT, SINCE, START, seen

WHERE = replace(CONTEXT, gates=Gates(acceptance_floor=0.05), reference=frozen(np.random.default_rng(0)))
LOWER = (0.7, 0.7, 0.3, 0.7)


def traffic(
    seed: int, count: int, rates: Sequence[float], *loads: int | None, positions: bool = True, first: int = 0
) -> Iterator[Observation]:
    """The candidate's requests, at the loads in turn."""
    accepted, drafts = requests(np.random.default_rng(seed), count, rates)
    for at, (row, d) in enumerate(zip(accepted[:, 1:], drafts, strict=True)):
        found = tuple(int(each) for each in row)
        counts = {"num_drafts": int(d), "num_draft_tokens": 4 * int(d), "num_accepted_tokens": sum(found)}
        told = {**counts, "accepted_per_position": found} if positions else counts
        made = seen(first + at, Arm.CANDIDATE, concurrency=loads[at % len(loads)], **told)
        made.check()
        yield made


def gate(state: LiveState, context: LiveContext = WHERE) -> GateEvidence:
    newest = max((max(pair) for pair in state.newest.values()), default=SINCE)
    (found,) = judge(context, state, [DRIFT_GATE], newest + 1, 3600.0)
    return found


def test_unchanged_traffic_passes_at_every_load() -> None:
    found = gate(fold(WHERE, START, traffic(1, 600, RATES, 1, 3, 20)))
    assert (found.gate, found.role, found.source) == (DRIFT_GATE, GateRole.ECONOMY, Source.LIVE)
    assert (found.verdict, found.reason, found.n) == (Verdict.PASS, "no_fall", 600)
    bands = found.details["bands"]
    assert isinstance(bands, dict)
    assert {name: each["requests"] for name, each in bands.items()} == {"1": 200, "2-4": 200, "17+": 200}
    json.dumps(found.details, allow_nan=False)


@pytest.mark.parametrize("seed", range(3))
def test_a_fall_in_one_load_band_alone_is_seen_there(seed: int) -> None:
    before = fold(WHERE, START, traffic(seed, 600, RATES, 1, 3))
    both = zip(traffic(seed + 50, 400, RATES, 1, first=600), traffic(seed + 90, 400, LOWER, 3, first=600), strict=True)
    found = gate(fold(WHERE, before, (o for pair in both for o in pair)))
    assert (found.verdict, found.reason) == (Verdict.FAIL, "fall_confirmed")
    assert "at position 3 in load band 2-4" in found.sentence
    bands = found.details["bands"]
    assert isinstance(bands, dict)
    assert bands["1"]["leading"] is None


def test_a_gateway_without_positions_or_loads_is_watched_all_the_same() -> None:
    before = fold(WHERE, START, traffic(2, 300, RATES, None, positions=False))
    assert gate(before).verdict is Verdict.PASS
    found = gate(fold(WHERE, before, traffic(3, 700, (0.5, 0.7, 0.7, 0.7), None, positions=False, first=300)))
    assert (found.verdict, found.reason) == (Verdict.FAIL, "fall_confirmed")
    assert "over all positions at unknown load" in found.sentence


def test_nothing_passes_without_a_reference_or_for_want_of_traffic() -> None:
    unknown = replace(WHERE, reference=None)
    found = gate(fold(unknown, START, traffic(4, 80, RATES, 1)), unknown)
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "settling")
    assert gate(START).verdict is Verdict.NO_DATA
    found = gate(fold(WHERE, START, traffic(5, 20, RATES, 1)))
    assert (found.verdict, found.reason, found.needed) == (Verdict.INCONCLUSIVE, "too_few", 30)
    state = fold(WHERE, START, traffic(6, 80, RATES, 1))
    (old,) = judge(WHERE, state, [DRIFT_GATE], SINCE + 9_000, 3600.0)
    assert (old.verdict, old.reason) == (Verdict.NO_DATA, "stale")


def test_bits_do_not_depend_on_the_batches() -> None:
    found = list(traffic(7, 300, LOWER, 1, None, 9))
    whole, state = fold(WHERE, START, found).to_json(), START
    for at in range(0, len(found), 7):
        state = fold(WHERE, LiveState.from_json(json.loads(json.dumps(state.to_json()))), found[at : at + 7])
    assert json.dumps(state.to_json()) == json.dumps(whole)


def test_bands() -> None:
    plain = seen(0, Arm.CANDIDATE, num_drafts=3, num_draft_tokens=9, num_accepted_tokens=4)
    assert [band(o) for o in (plain, replace(plain, concurrency=7))] == ["unknown, totals", "5-16, totals"]
    assert band(replace(plain, accepted_per_position=(3, 1), concurrency=1)) == "1"
    assert [words(name) for name in ("unknown, totals", "2-4")] == ["at unknown load", "in load band 2-4"]


def test_a_reference_is_read_from_the_evidence_once_it_is_frozen() -> None:
    whole = WHERE.reference
    assert whole is not None
    kept = reference_of({"reference": json.loads(json.dumps(whole.to_json()))})
    assert kept is not None
    assert kept.to_json() == whole.to_json()
    assert reference_of({"reference": replace(whole, n=419).to_json()}) is None
    assert reference_of({"reference": None}) is reference_of(None) is reference_of({}) is None
