"""A5.16: the kill switch at every stage x kind of rule x shape of pair, by every way there is; nothing may be missing.

The industry's kill paths break where nobody had killed before: a rule of a kind, or an object, that is not there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.decide import Kind, decide
from canary.domain.flag import Flag, Snapshot, resolve
from canary.domain.kills import ALL, Act, KillOrder, Kills, overlaid
from canary.domain.policy import Drafter, Policy, Subject
from canary.domain.step import step
from canary.flow.kills import settle
from canary.inmemory import InMemoryStore
from tests.api.served import NOW as THEN
from tests.api.served import add_route
from tests.domain.situations import NOW, PLACES, POLICY, ROLES, evidence, rollout

VERDICTS = ("pass", "fail", "inconclusive", "no_data", "error")
PAIRS: dict[str, Subject] = {
    "ngram": Subject("own", "target", Drafter("ngram", 4), "float32"),
    "draft model": Subject("own", "target", Drafter("draft_model", 2, model="drafts/tiny"), "bfloat16"),
    "drill": Subject("own", "target", Drafter("ngram", 1), "float32", fault="accept_all"),
}
FLAGS = {
    "plain": {},
    "pinned": {"pins": {"u": "candidate"}},
    "configured": {"config": {"num_speculative_tokens": 4}, "policy_version": "hash", "max_stale": 5.0},
    "lost": {"on_lost": "baseline"},
    "killed": {"killed": True, "kill_reason": "safety_failed: x", "kill_epoch": 2},
}


def policy_of(pair: str) -> Policy:
    return replace(POLICY, subject=PAIRS[pair])


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("place", PLACES)
def test_a_manual_kill_is_decided_and_stepped_whatever_the_gates_say(place: str, pair: str) -> None:
    policy = policy_of(pair)
    rules = [{name: verdict} for name in [*ROLES, *(f"live {name}" for name in ROLES)] for verdict in VERDICTS]
    rules += [{name: None} for name in ROLES]
    for found in [None, evidence(epoch="another"), *(evidence(rule) for rule in rules)]:
        row = rollout(place)
        decision = decide(row, policy, found, NOW, manual_kill="users complain")
        assert (decision.kind, decision.row, decision.reason) == (Kind.KILL, 1, "manual_kill")
        stepped = step(row, policy, decision, NOW)
        assert (stepped.killed, stepped.flag_weight, stepped.rollout.killed) == (True, 0, True)
        assert stepped.rollout.ramp_weight == 0, "a person's kill is immediate"
        assert "users complain" in decision.sentence


@pytest.mark.parametrize("shape", FLAGS)
@pytest.mark.parametrize("weight", [0, 500, 9_999, 10_000])
@pytest.mark.parametrize("scope", ["math", ALL])
def test_every_shape_of_flag_resolves_to_the_baseline_once_killed(scope: str, weight: int, shape: str) -> None:
    flag = replace(Flag("math", weight, "s", stage="x"), **FLAGS[shape])  # type: ignore[arg-type]
    base = Snapshot(3, NOW, {"math": flag})
    order = KillOrder(1, "k", Act.KILL, scope, "users complain", "ada", NOW)
    for served in (overlaid(base, (), Kills.of([order]), {}), overlaid(base, (), Kills(), {scope: "smoke"})):
        for unit in ("u", "v", None, ""):
            assert resolve(served, "math", unit, age=0.0, max_stale=60.0).variant == "baseline"
            assert resolve(served, "math", unit, age=1e6, max_stale=60.0).variant == "baseline"
        assert served.flags["math"].check().killed
        assert Snapshot.from_json(served.to_json(), NOW) == served


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("missing", ["nothing", "flag", "policy", "evidence"])
def test_an_order_is_settled_at_every_stage_and_whatever_is_missing(place: str, missing: str) -> None:
    store = InMemoryStore()
    add_route(store, "math")
    state, stage = PLACES[place]
    with store.transaction() as tx:
        row = tx.rollouts.get("math")
        assert row is not None
        gone = {"policy_hash": "gone"} if missing == "policy" else {}
        tx.rollouts.put(replace(row, state=state, stage=stage, version=row.version + 1, **gone))  # type: ignore[arg-type]
        if missing != "evidence":
            tx.evidence.put("math", row.epoch, row.attempt, {"last": None})
        tx.commit()
    if missing == "flag":
        del store.state.flags["math"]
    order = KillOrder(1, "k", Act.KILL, "math", "users complain", "ada", THEN)
    assert settle(store, Kills.of([order]), [order], THEN) == [order]
    with store.transaction() as tx:
        row, flag = tx.rollouts.get("math"), tx.flags.get("math")
    assert row is not None
    assert flag is not None
    assert (row.killed, flag.killed, flag.weight, row.state) == (True, True, 0, state)
