"""The drill on a tiny model: faults are caught where the catalogue says, harmless controls pass, and nothing else is touched."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from canary import wiring
from canary.domain.catalogue import CATALOGUE
from canary.domain.drills import CLEAN, FaultResult, Outcome, exit_code
from canary.domain.errors import UsageError
from canary.domain.evidence import Evidence, GateEvidence, GateRole, Verdict
from canary.domain.policy import Drills, Policy
from canary.domain.traffic import Prompt
from canary.flow.ports import Store
from canary.flow.tools.drill import Drill, as_body, judged, run_drill, wanted
from canary.flow.walk.mirror import read_request
from canary.telemetry import SilentObserver
from tests.engine.tiny import noisy_copy, save_tiny, tiny_model
from tests.flow import tiny_walk

QUIET = SilentObserver()
TOKENS = 32
SAFETY, EQUIVALENCE = GateRole.SAFETY, GateRole.EQUIVALENCE


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target that often repeats itself, and a draft that is often right; answers end by EOS now and then."""
    folder, model = tmp_path_factory.mktemp("drill"), tiny_model(loopy=True)
    save_tiny(folder / "target", model)
    save_tiny(folder / "draft", noisy_copy(model))
    return folder


def policy_of(models: Path, drafter: str = "ngram") -> Policy:
    plain = tiny_walk.policy(models / "target", max_tokens=TOKENS)
    changed = replace(plain.subject.drafter, name=drafter, model=str(models / "draft") if drafter == "draft_model" else None)
    return replace(
        plain,
        subject=replace(plain.subject, drafter=changed),
        shadow=replace(plain.shadow, batch_size=8),
        drills=Drills(("all",)),
    )


@lru_cache
def requests(count: int, temperature: float, **params: object) -> list[Prompt]:
    found = []
    for number in range(count):
        body = json.loads(tiny_walk.body(number, temperature)) | {"max_tokens": TOKENS} | params
        raw = json.dumps(body).encode()
        given = {"route": "tiny", "endpoint": "chat/completions", "source": "test"}
        found.append(read_request(raw, **given, request_id=f"r{number}"))
    return found


def drilled(
    policy: Policy,
    prompts: list[Prompt],
    *names: str,
    stores: list[Store] | None = None,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> list[FaultResult]:
    def new_store() -> Store:
        store = wiring.memory_store()
        if stores is not None:
            stores.append(store)
        return store

    def open_engine(changed: Policy):  # type: ignore[no-untyped-def]
        return wiring.open_engine(changed, threads=1)

    clock = itertools.count(1_000.0).__next__
    drill = Drill(policy, prompts, open_engine, new_store, clock=clock, observer=QUIET, progress=progress)
    return list(run_drill(drill, wanted(names), open_engine(policy).info))


# fault, drafter, temperature, requests; the gate that the catalogue names decides
CAUGHT = [
    ("uniform_zero", "ngram", 1.0, 16),
    ("greedy_verify", "ngram", 1.0, 16),
    ("greedy_draft_softmax_q", "draft_model", 1.0, 16),
    ("filters_ignored", "ngram", 0.7, 16),
    ("rejected_kept", "ngram", 0.0, 16),
]


@pytest.mark.parametrize(("name", "drafter", "temperature", "budget"), CAUGHT)
def test_a_fault_is_caught_by_the_gate_that_its_entry_names(
    models: Path, name: str, drafter: str, temperature: float, budget: int
) -> None:
    prompts = requests(budget, temperature, **({"top_p": 0.8} if temperature == 0.7 else {}))
    (result,) = drilled(policy_of(models, drafter), prompts, name)
    assert (result.fault, result.outcome) == (name, Outcome.CAUGHT), result
    assert result.gate in CATALOGUE[name].seen_by
    assert 0 < result.requests <= budget
    assert result.reason
    assert result.sentence
    assert exit_code([result]) == 0


def test_a_missed_end_is_caught_by_failed_arms(models: Path) -> None:
    prompts = requests(48, 1.0, stop=tuple("aeimqsu.,:;-+/01"))
    (result,) = drilled(policy_of(models, "draft_model"), prompts, "drafts_leak_past_end")
    assert (result.outcome, result.gate) == (Outcome.CAUGHT, "errors"), result


def test_harmless_controls_and_the_clean_candidate_pass(models: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    names = ("ulp_noise", "cold_draft", "unguarded_residual")
    results = drilled(
        policy_of(models), requests(8, 1.0), *names, progress=lambda name, done, total: seen.append((name, done, total))
    )
    found = {r.fault: r.outcome for r in results}
    assert list(found) == [CLEAN, *names]
    assert found[CLEAN] is found["ulp_noise"] is Outcome.PASSED
    assert (found["cold_draft"], found["unguarded_residual"]) == (Outcome.CANNOT_SHOW, Outcome.BLIND)
    assert (CLEAN, 8, 8) in seen


def test_a_drill_walks_without_its_routes_rollout_and_is_counted_to_the_ordinal(models: Path) -> None:
    stores: list[Store] = []
    policy = policy_of(models)
    (result,) = drilled(policy, requests(16, 1.0), "uniform_zero", stores=stores)
    assert len(stores) == 1
    with stores[0].transaction() as tx:
        rollout = tx.rollouts.get("tiny")
        assert rollout is not None
        pairs = [tx.pairs.get(i) for i in tx.pairs.ids("tiny", rollout.epoch, rollout.attempt)]
    counted = [len(p.candidate.token_ids) for p in pairs if p is not None and p.ordinal < result.requests]
    assert result.tokens == sum(counted)
    assert all(p is None or (p.candidate_timing is None and not p.control) for p in pairs)
    body = as_body([result], policy, "epoch", complete=True)
    assert json.loads(json.dumps(body))["faults"][0]["outcome"] == "caught"
    assert (body["power"], body["code"], body["policy"]) == (1.0, 0, policy.content_hash)


def evidence(**verdicts: Verdict) -> Evidence:
    roles = {"losslessness": SAFETY, "errors": SAFETY, "row_gate": EQUIVALENCE, "bank_certificate": EQUIVALENCE}
    roles |= {"completeness": GateRole.HARNESS}
    found = {name: verdicts.get(name, Verdict.INCONCLUSIVE) for name in (*roles, "acceptance", "speed")}
    gates = tuple(GateEvidence(n, roles.get(n, GateRole.ECONOMY), v, f"{n}_code", "") for n, v in found.items())
    return Evidence("tiny", "e", 1, 9, 9, 0, gates, "e", "e", 0.0)


CERTIFIED = dict.fromkeys(("losslessness", "errors", "row_gate", "bank_certificate"), Verdict.PASS)


@pytest.mark.parametrize(
    ("fault", "verdicts", "outcome", "gate"),
    [
        ("uniform_zero", {}, None, None),
        ("uniform_zero", {"losslessness": Verdict.FAIL, "row_gate": Verdict.FAIL}, Outcome.CAUGHT, "losslessness"),
        ("uniform_zero", {"row_gate": Verdict.FAIL}, Outcome.CAUGHT, "row_gate"),
        ("uniform_zero", {"completeness": Verdict.FAIL}, Outcome.CAUGHT, "completeness"),
        ("uniform_zero", {"acceptance": Verdict.FAIL, "speed": Verdict.FAIL}, None, None),
        ("uniform_zero", CERTIFIED, Outcome.MISSED, None),
        ("permuted_draft_ids", CERTIFIED, None, None),
        ("permuted_draft_ids", {"acceptance": Verdict.FAIL}, Outcome.CAUGHT, "acceptance"),
        ("permuted_draft_ids", {"speed": Verdict.FAIL}, None, None),
        ("permuted_draft_ids", {"acceptance": Verdict.PASS}, Outcome.TOLERATED, None),
        ("slow_draft", {"speed": Verdict.FAIL}, Outcome.CAUGHT, "speed"),
        ("ulp_noise", {"losslessness": Verdict.FAIL}, Outcome.FALSE_ALARM, "losslessness"),
        ("ulp_noise", {"row_gate": Verdict.FAIL, "acceptance": Verdict.FAIL}, None, None),
        ("ulp_noise", CERTIFIED, Outcome.PASSED, None),
    ],
)
def test_what_evidence_says_about_a_fault(
    fault: str, verdicts: dict[str, Verdict], outcome: Outcome | None, gate: str | None
) -> None:
    found, by = judged(CATALOGUE[fault], evidence(**verdicts))
    assert (found, by.gate if by else None) == (outcome, gate)


def test_a_gate_that_fails_without_a_fault_catches_none(models: Path) -> None:
    policy = policy_of(models)
    strict = replace(policy, gates=replace(policy.gates, acceptance_floor=0.999))
    clean, worse = drilled(strict, requests(24, 1.0), "permuted_draft_ids")
    assert (clean.fault, clean.outcome) == (CLEAN, Outcome.PASSED)
    assert clean.requests < 24
    assert worse.outcome is Outcome.CANNOT_SHOW
    assert "acceptance fails without it" in worse.sentence


def test_what_cannot_be_drilled_is_said(models: Path) -> None:
    policy = policy_of(models)
    with pytest.raises(UsageError, match="no fault named 'gremlin'"):
        wanted(["gremlin"])
    with pytest.raises(UsageError, match="no request to drill with"):
        drilled(policy, [], "uniform_zero")
    with pytest.raises(UsageError, match="own subject has the fault"):
        drilled(replace(policy, subject=replace(policy.subject, fault="uniform_zero")), requests(8, 1.0), "uniform_zero")
    assert wanted([]) == list(CATALOGUE.values())
