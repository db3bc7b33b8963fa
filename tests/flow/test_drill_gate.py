"""The gate `drill`: a required drill blocks the way out of the shadow until it is passed, fresh and of this epoch."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from canary.domain.catalogue import CATALOGUE
from canary.domain.decide import decide
from canary.domain.drills import Outcome
from canary.domain.errors import PolicyError
from canary.domain.evidence import Evidence, GateEvidence, GateRole, Verdict
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout, State
from canary.flow.drills import gates, judge, required
from canary.flow.tools.drill import remember
from canary.flow.tools.policy_files import dump, load_text, schema
from canary.inmemory import InMemoryStore
from tests.flow.policy_texts import LEGAL

DAY = 86_400.0
NOW = 100 * DAY
ROLLOUT = Rollout("math", "hash", State.SHADOW, 0, "epoch", 1, entered_at=NOW)
ASKED = LEGAL + "drills:\n  required: [uniform_zero, short_crop]\n  max_age: 7d\n"


def event(outcomes: Mapping[str, Outcome], *, epoch: str = "epoch", age_days: float = 1.0) -> dict[str, object]:
    faults = [{"fault": name, "outcome": outcome.value} for name, outcome in outcomes.items()]
    return {"body": {"epoch": epoch, "faults": faults}, "at": NOW - age_days * DAY}


def found(*events: dict[str, object], names: tuple[str, ...] = ("uniform_zero", "short_crop")) -> GateEvidence:
    return judge(names, events, "epoch", 7 * DAY, NOW)


BOTH = {"uniform_zero": Outcome.CAUGHT, "short_crop": Outcome.CAUGHT}


@pytest.mark.parametrize(
    ("events", "verdict", "reason", "n"),
    [
        ((), Verdict.INCONCLUSIVE, "no_drill", 0),
        ((event(BOTH),), Verdict.PASS, "drill_passed", 2),
        ((event({"uniform_zero": Outcome.CAUGHT}), event({"short_crop": Outcome.CANNOT_SHOW})), Verdict.PASS, "drill_passed", 2),
        ((event({"uniform_zero": Outcome.CAUGHT}),), Verdict.INCONCLUSIVE, "no_drill", 1),
        ((event(BOTH, epoch="other"),), Verdict.INCONCLUSIVE, "no_drill", 0),
        ((event(BOTH, age_days=8),), Verdict.INCONCLUSIVE, "drill_stale", 0),
        ((event({"short_crop": Outcome.MISSED}, age_days=0.5), event(BOTH)), Verdict.FAIL, "drill_missed", 1),
        ((event(BOTH, age_days=0.5), event({"short_crop": Outcome.MISSED})), Verdict.PASS, "drill_passed", 2),
        ((event(BOTH | {"short_crop": Outcome.UNDECIDED}),), Verdict.INCONCLUSIVE, "drill_undecided", 1),
        ((event(BOTH | {"short_crop": Outcome.FALSE_ALARM}),), Verdict.FAIL, "drill_missed", 1),
    ],
)
def test_the_newest_fresh_result_of_each_fault_counts(
    events: tuple[dict[str, object], ...], verdict: Verdict, reason: str, n: int
) -> None:
    gate = found(*events)
    assert (gate.verdict, gate.reason, gate.n, gate.needed) == (verdict, reason, n, 2 - n)
    assert gate.role is GateRole.EQUIVALENCE


def test_all_means_every_fault_that_a_gate_can_see() -> None:
    policy = load_text(LEGAL + "drills: {required: [all]}\n")
    assert required(policy) == tuple(n for n, e in CATALOGUE.items() if not e.blind)
    gate = judge(required(policy), [event(dict.fromkeys(required(policy), Outcome.CAUGHT))], "epoch", DAY * 7, NOW)
    assert gate.verdict is Verdict.PASS
    assert f"and {len(required(policy)) - 3} more" in judge(required(policy), [], "epoch", DAY * 7, NOW).sentence


def gates_of(policy: Policy, rollout: Rollout, store: InMemoryStore) -> tuple[GateEvidence, ...]:
    with store.transaction() as tx:
        return gates(tx, rollout, policy, NOW)


def test_the_gate_is_asked_in_the_shadow_only_and_reads_the_audit_log() -> None:
    store, policy = InMemoryStore(), load_text(ASKED)
    assert gates_of(load_text(LEGAL), ROLLOUT, store) == ()
    assert gates_of(policy, Rollout("math", "hash", State.CANARY, 1, "epoch", 1, entered_at=NOW), store) == ()
    (gate,) = gates_of(policy, ROLLOUT, store)
    assert gate.reason == "no_drill"
    for number in range(120):
        with store.transaction() as tx:
            tx.audit.append("math", "decision", "policy", {}, NOW - number)
            tx.commit()
    body = {"epoch": "epoch", "faults": [{"fault": n, "outcome": "caught"} for n in BOTH]}
    remember(store, "math", body, "somebody", NOW - 5 * DAY)
    (gate,) = gates_of(policy, ROLLOUT, store)
    assert gate.verdict is Verdict.PASS


def decided(policy: Policy, drill: GateEvidence) -> str:
    names = {"losslessness": GateRole.SAFETY, "acceptance": GateRole.ECONOMY, "speed": GateRole.ECONOMY}
    others = [GateEvidence(n, role, Verdict.PASS, "ok", "") for n, role in names.items()]
    others.append(GateEvidence("bank_certificate", GateRole.EQUIVALENCE, Verdict.PASS, "certified", ""))
    evidence = Evidence("math", "epoch", 1, 9, 9, 0, (*others, drill), "epoch", "epoch", NOW, NOW)
    decision = decide(ROLLOUT, policy, evidence, NOW)
    return f"{decision.kind.value} {decision.reason}"


def test_a_drill_blocks_an_advance_and_does_nothing_else() -> None:
    policy = load_text(ASKED)
    assert decided(policy, found(event(BOTH))) == "advance all_pass"
    for events in ((), (event({"short_crop": Outcome.MISSED}),), (event(BOTH, age_days=30),)):
        assert decided(policy, found(*events)) == "stay not_yet"


@pytest.mark.parametrize(
    ("drills", "said"),
    [
        (
            "drills: {required: [uniform_one]}",
            r"required\[0\] is 'uniform_one', which is unknown.*Did you mean 'uniform_zero'",
        ),
        ("drills: {required: uniform_zero}", "must be a list"),
        ("drills: {required: [all], max_age: 7}", "must be a duration"),
        ("drills: {max_age: 1s}", "must be at least 60s"),
        ("drills: {faults: [all]}", "unknown key 'faults'"),
    ],
)
def test_a_wrong_section_is_refused_at_its_line(drills: str, said: str) -> None:
    line = LEGAL.count("\n") + 1
    with pytest.raises(PolicyError, match=said) as caught:
        load_text(LEGAL + drills + "\n", "math.yaml")
    assert caught.value.where.startswith(f"math.yaml:{line}:")


def test_the_section_comes_back_and_is_described() -> None:
    policy = load_text(ASKED)
    assert policy.drills.required == ("uniform_zero", "short_crop")
    assert load_text(dump(policy)) == policy
    assert load_text(LEGAL).content_hash != policy.content_hash
    described = schema()["properties"]["drills"]["properties"]
    assert "all" in described["required"]["items"]["enum"]
    assert described["max_age"]["description"]
