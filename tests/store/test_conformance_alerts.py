"""Budgets that run out and strata that are not tested, as webhooks hear of them; the same on both stores."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from canary.domain.decide import decide
from canary.domain.evidence import Evidence, GateEvidence, GateRole, Verdict
from canary.domain.policy import Policy
from canary.domain.stage_policy import NotifyTarget
from canary.domain.traffic import Prompt
from canary.flow.attempt import locked_rollout
from canary.flow.ports import Store
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.walk import control
from canary.flow.walk.mirror import CHAT, Accepted, accept, read_request
from canary.stats.strata import untested_gate
from tests.api.served import NOW, SECRET, policy_of
from tests.domain.situations import evidence as healthy

MIDNIGHT = NOW - NOW % 86_400 + 86_400


def routed(store: Store, *, requests_per_day: int | None = None) -> Policy:
    """One route in shadow whose policy tells a webhook of everything, with an evidence record."""
    plain = policy_of("math")
    policy = replace(plain, notify=(NotifyTarget("ops"),), shadow=replace(plain.shadow, requests_per_day=requests_per_day))
    text = dump(policy)
    rollout = apply_policy(store, load_text(text, name="math"), text, NOW)
    with store.transaction() as tx:
        tx.rollouts.put(replace(rollout, state=type(rollout.state).SHADOW, epoch="epoch-1", version=rollout.version + 1))
        tx.evidence.put("math", "epoch-1", 1, {"engine": {}, "last": None, "battery": None})
        tx.commit()
    return load_text(text, name="math")


def prompts(first: int, count: int) -> list[Prompt]:
    body = json.dumps({"messages": [{"role": "user", "content": SECRET}]}).encode()
    return [read_request(body, route="math", endpoint=CHAT, source="gw", request_id=f"r{i}") for i in range(first, first + count)]


def heard(store: Store, event: str) -> list[dict[str, Any]]:
    """Bodies of one event, the oldest first."""
    with store.transaction() as tx:
        found = [n for n in tx.notices.list(99) if n.event == event]
    assert SECRET not in json.dumps([n.body for n in found])
    return [json.loads(n.body) for n in reversed(found)]


def test_a_days_mirror_budget_is_told_at_80_per_cent_and_when_it_is_used_up_once_each(store: Store) -> None:
    routed(store, requests_per_day=10)
    accept(store, prompts(0, 7), NOW)
    assert heard(store, "budget") == []
    accept(store, prompts(0, 8), NOW + 1)  # seven repeats and one new
    accept(store, prompts(8, 1), NOW + 2)
    assert [(b["reason"], b["level"]) for b in heard(store, "budget")] == [("mirror_budget_low", 80)]
    assert accept(store, prompts(9, 3), NOW + 3)[-1] is Accepted.OVER_BUDGET
    accept(store, prompts(20, 3), NOW + 4)
    told = heard(store, "budget")
    assert [(b["reason"], b["level"], b["requests_per_day"]) for b in told[1:]] == [("mirror_budget_used_up", 100, 10)]
    assert len({b["id"] for b in told}) == 2
    accept(store, prompts(30, 10), MIDNIGHT)
    assert [b["day"] for b in heard(store, "budget")] == [told[0]["day"], told[1]["day"], "2023-11-15"]


def test_a_listener_that_crosses_a_level_unseen_is_made_up_for(store: Store) -> None:
    """Two listeners cross it together, neither seeing the other's requests: the next batch tells."""
    routed(store, requests_per_day=10)
    with store.transaction() as tx:
        tx.prompts.add_many(prompts(0, 9), NOW)
        tx.commit()
    assert heard(store, "budget") == []
    accept(store, prompts(0, 1), NOW)
    assert [b["level"] for b in heard(store, "budget")] == [80]


def test_a_route_without_a_budget_is_told_nothing(store: Store) -> None:
    routed(store)
    accept(store, prompts(0, 50), NOW)
    assert heard(store, "budget") == []


def decided(store: Store, policy: Policy, found: Evidence | None, now: float) -> None:
    """What the control loop's writing transaction does with evidence."""
    with store.transaction() as tx:
        before = locked_rollout(tx, "math")
        decision = decide(before, policy, found, now)
        control._remember(tx, before, before, decision, found, now)
        tx.commit()


def seen(*gates: GateEvidence) -> Evidence:
    return replace(healthy(), route="math", epoch="epoch-1", attempt=1, gates=gates)


def failing(gate: str) -> GateEvidence:
    return GateEvidence(gate, GateRole.SAFETY, Verdict.FAIL, "proven", f"a sentence about {SECRET}")


def test_an_attempts_error_budget_is_told_once_per_e_value(store: Store) -> None:
    policy = routed(store)
    decided(store, policy, seen(replace(failing("losslessness"), verdict=Verdict.INCONCLUSIVE)), NOW)
    assert heard(store, "budget") == []
    for at in range(3):
        decided(store, policy, seen(failing("losslessness")), NOW + 10 * at)
    assert [(b["reason"], b["e_value"], b["alpha"]) for b in heard(store, "budget")] == [
        ("error_budget_spent", "losslessness", 0.01)
    ]
    decided(store, policy, seen(failing("losslessness"), failing("structured_validity"), failing("errors")), NOW + 100)
    assert [b["e_value"] for b in heard(store, "budget")] == ["losslessness", "errors"]
    economy = replace(failing("speed"), role=GateRole.ECONOMY)
    decided(store, policy, seen(failing("losslessness"), failing("errors"), economy), NOW + 200)
    assert len(heard(store, "budget")) == 2, "economy spends no budget of the kill"


def test_a_stratum_that_is_not_tested_any_more_and_its_return_are_told_once_per_change(store: Store) -> None:
    policy = routed(store)
    rare, common = (untested_gate({"greedy": greedy, "sampled": 100 - greedy}) for greedy in (2, 20))  # type: ignore[dict-item]
    assert rare is not None
    assert common is None
    for at, found in enumerate((seen(), seen(rare), seen(rare), None, seen(rare), seen(), seen(), seen(rare))):
        decided(store, policy, found, NOW + at)
    assert [(b["reason"], b["untested"]) for b in heard(store, "coverage")] == [
        ("stratum_untested", "greedy"),
        ("stratum_tested", ""),
        ("stratum_untested", "greedy"),
    ]


def test_what_is_not_committed_is_told_to_nobody_and_told_again(store: Store) -> None:
    policy = routed(store)
    with store.transaction() as tx:
        before = locked_rollout(tx, "math")
        found = seen(failing("errors"))
        control._remember(tx, before, before, decide(before, policy, found, NOW), found, NOW)
    assert heard(store, "budget") == []
    decided(store, policy, seen(failing("errors")), NOW + 1)
    assert len(heard(store, "budget")) == 1
