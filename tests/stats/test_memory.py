"""The memory gate: asked only where a policy names a headroom, from the engine's own report."""

from dataclasses import replace

import pytest

from canary.domain.evidence import GateRole, Verdict
from canary.domain.policy import Gates
from canary.stats import memory
from tests.stats.make import context

GIB = 2.0**30
REPORT = {"target": 4 * GIB, "target_cache": 2 * GIB, "drafter": GIB, "drafter_cache": GIB, "total": 10 * GIB}


def test_it_is_not_asked_without_a_headroom() -> None:
    assert memory.judge(replace(context(Gates()), memory=REPORT)) == []


@pytest.mark.parametrize(("headroom", "verdict"), [(0.1, Verdict.PASS), (0.2, Verdict.PASS), (0.3, Verdict.FAIL)])
def test_the_free_share_with_the_candidate_decides(headroom: float, verdict: Verdict) -> None:
    (found,) = memory.judge(replace(context(Gates(memory_headroom=headroom)), memory=REPORT))
    assert (found.gate, found.role, found.verdict) == ("memory", GateRole.ECONOMY, verdict)
    assert found.value == pytest.approx(0.2)
    assert found.details["free_before"] == pytest.approx(0.4)
    assert "8.00 GiB of 10.00 GiB, 2.00 GiB more than the baseline" in found.sentence


def test_an_engine_that_does_not_report_is_no_data() -> None:
    (found,) = memory.judge(replace(context(Gates(memory_headroom=0.1)), memory={"target": GIB}))
    assert (found.verdict, found.reason) == (Verdict.NO_DATA, "not_reported")
    assert "drafter" in found.sentence
