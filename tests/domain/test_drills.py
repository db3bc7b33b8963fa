"""What a drill's results add up to, and where the catalogue says that a fault can show."""

from __future__ import annotations

import json

import pytest

from canary.domain.catalogue import CATALOGUE, Need, Traffic
from canary.domain.drills import CLEAN, FaultResult, Outcome, exit_code, power
from canary.domain.errors import ExitCode
from canary.domain.pairs import DrafterKind
from canary.domain.traffic import Message, Prompt, SamplingParams, Stratum

GATES = {"losslessness", "row_gate", "outliers", "outlier_requests", "errors", "acceptance", "speed", "structured_validity"}


def prompt(**params: object) -> Prompt:
    asked = SamplingParams(**({"max_tokens": 64} | params))  # type: ignore[arg-type]
    return Prompt("s", json.dumps(params), "r", "chat/completions", b"{}", (Message("user", "x"),), None, asked)


def traffic(*prompts: Prompt, batch_size: int = 8, max_tokens: int = 64) -> Traffic:
    return Traffic.of(prompts, batch_size=batch_size, max_tokens=max_tokens)


def results(*outcomes: Outcome) -> list[FaultResult]:
    return [FaultResult(f"fault-{i}", outcome) for i, outcome in enumerate(outcomes)]


def test_every_entry_says_who_sees_it() -> None:
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert all((entry.summary, entry.report, entry.sign, entry.detector))
        assert set(entry.seen_by) <= GATES
        assert bool(entry.seen_by) != bool(entry.harmless or entry.blind)
        assert entry.kinds
        assert entry.strata
        assert entry.group in "ABCDEFGHIJKL"
    assert {e.group for e in CATALOGUE.values()} == set("ABCDEFGHIJKL")
    assert sum(e.harmless for e in CATALOGUE.values()) == 4
    assert [n for n, e in CATALOGUE.items() if e.economic] == [
        "permuted_draft_ids", "draft_window_truncated", "draft_misses_bonus", "slow_draft", "quadratic_lookup",
    ]  # fmt: skip


def test_what_the_traffic_offers() -> None:
    assert traffic(prompt(temperature=0.0)).strata == {Stratum.GREEDY}
    assert traffic(prompt(temperature=0.0)).has == {Need.ENDS, Need.LONG}
    both = traffic(prompt(temperature=0.7), prompt(temperature=0.0), max_tokens=48)
    assert (both.strata, both.has) == (set(Stratum), {Need.ENDS, Need.TEMPERATURE, Need.SHAPED, Need.BATCH})
    assert traffic(prompt(temperature=1.0, top_p=0.9)).has == {Need.ENDS, Need.FILTERS, Need.SHAPED, Need.LONG}
    assert Need.BATCH not in traffic(prompt(), prompt(temperature=0.5), batch_size=1).has
    assert traffic() == Traffic(frozenset(), frozenset({Need.ENDS}))


@pytest.mark.parametrize(
    ("name", "kind", "k", "offered", "why"),
    [
        ("cold_draft", DrafterKind.ONE_HOT, 4, prompt(), "drafter of kind dense"),
        ("cold_draft", DrafterKind.DENSE, 4, prompt(), ""),
        ("off_by_one_rows", DrafterKind.ONE_HOT, 1, prompt(), "at least 2"),
        ("uniform_zero", DrafterKind.ONE_HOT, 4, prompt(temperature=0.0), "sampled requests"),
        ("temperature_ignored", DrafterKind.ONE_HOT, 4, prompt(), "lack what it needs: temperature"),
        ("longest_length", DrafterKind.ONE_HOT, 4, prompt(), "batch"),
        ("rejected_kept_late", DrafterKind.ONE_HOT, 4, prompt(max_tokens=20), "long"),
        ("rejected_kept", DrafterKind.ONE_HOT, 4, prompt(temperature=0.0), ""),
        ("chunk_read_from_last_token", DrafterKind.ONE_HOT, 4, prompt(), "structured"),
    ],
)
def test_where_a_fault_can_show(name: str, kind: DrafterKind, k: int, offered: Prompt, why: str) -> None:
    found = CATALOGUE[name].cannot_show(kind, k, traffic(offered))
    assert why in found
    assert bool(found) == bool(why)


@pytest.mark.parametrize(
    ("outcomes", "code", "share"),
    [
        ((Outcome.CAUGHT, Outcome.CAUGHT), ExitCode.PASS, 1.0),
        ((Outcome.CAUGHT, Outcome.MISSED, Outcome.UNDECIDED), ExitCode.FAIL, 1 / 3),
        ((Outcome.CAUGHT, Outcome.UNDECIDED), ExitCode.INCONCLUSIVE, 0.5),
        ((Outcome.CAUGHT, Outcome.FALSE_ALARM), ExitCode.FAIL, 1.0),
        ((Outcome.CAUGHT, Outcome.PASSED, Outcome.TOLERATED, Outcome.BLIND, Outcome.CANNOT_SHOW), ExitCode.PASS, 1.0),
        ((Outcome.PASSED,), ExitCode.PASS, None),
        ((Outcome.CANNOT_SHOW, Outcome.BLIND), ExitCode.NO_DATA, None),
        ((), ExitCode.NO_DATA, None),
    ],
)
def test_the_exit_code_and_the_power(outcomes: tuple[Outcome, ...], code: ExitCode, share: float | None) -> None:
    assert exit_code(results(*outcomes)) == code
    assert power(results(*outcomes)) == (None if share is None else pytest.approx(share))


def test_a_clean_run_alone_is_no_drill() -> None:
    assert exit_code([FaultResult(CLEAN, Outcome.PASSED)]) == ExitCode.NO_DATA
    assert exit_code([FaultResult(CLEAN, Outcome.FALSE_ALARM)]) == ExitCode.FAIL
