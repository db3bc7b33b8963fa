"""Webhooks: written with the transition or not at all, signed, tried again, given up and listed, and free of any free text."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from canary.domain.errors import UsageError
from canary.domain.notices import FIRST_SECONDS, LAST_SECONDS, NoticeState, delay, jitter, sign, verify
from canary.domain.stage_policy import NotifyTarget
from canary.flow.attempt import locked_rollout, pinned_policy
from canary.flow.kills import kill
from canary.flow.notify import deliver, tell, tell_event
from canary.flow.ports import Store
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.commands import pause
from canary.flow.tools.policy_files import dump, load_text
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, SECRET, add_route, policy_of


def told_store(*targets: NotifyTarget) -> Store:
    """A store with one route whose policy names webhooks."""
    store = InMemoryStore()
    text = dump(replace(policy_of("math"), notify=targets))
    rollout = apply_policy(store, load_text(text, name="math"), text, NOW)
    with store.transaction() as tx:
        tx.rollouts.put(replace(rollout, state=type(rollout.state).SHADOW, epoch="e", version=rollout.version + 1))
        tx.commit()
    return store


def bodies(store: Store) -> list[dict[str, object]]:
    with store.transaction() as tx:
        return [json.loads(notice.body) for notice in tx.notices.list(99)]


def test_a_kill_and_a_pause_are_told_to_whom_the_policy_names() -> None:
    store = told_store(NotifyTarget("ops"), NotifyTarget("pager", ("kill",)))
    pause(store, "math", f"looks odd {SECRET}", "ada", NOW + 1)
    kill(store, "math", f"on fire {SECRET}", "ada", NOW + 2)
    kill(store, "math", "again", "ada", NOW + 3)
    with store.transaction() as tx:
        found = [(n.target, n.event) for n in tx.notices.list(99)]
    assert sorted(found) == [("ops", "kill"), ("ops", "stage"), ("pager", "kill")], "a second kill changes nothing"
    assert SECRET not in json.dumps(bodies(store)), "a person's words stay in the audit log"
    assert all(body["route"] == "math" and body["id"] and body["at"] for body in bodies(store))


def test_a_transaction_that_is_not_committed_tells_nobody() -> None:
    store = told_store(NotifyTarget("ops"))
    with store.transaction() as tx:
        policy = pinned_policy(tx, locked_rollout(tx, "math"))
        assert tell(tx, policy, "kill", {"reason": "manual_kill"}, NOW)
    assert bodies(store) == []


def test_only_listed_codes_and_numbers_are_told() -> None:
    store = told_store(NotifyTarget("ops"))
    body = {"reason": "two words", "weight": 500, "sentence": SECRET, "after": {"stage": 1, "reason": SECRET, "gates": [SECRET]}}
    with store.transaction() as tx:
        policy = pinned_policy(tx, locked_rollout(tx, "math"))
        (notice,) = tell(tx, policy, "advance", body, NOW)
        assert tell(tx, policy, "apply", body, NOW) == []
        with pytest.raises(ValueError, match="unknown event"):
            tell_event(tx, policy, "weather", {}, NOW)
    said = json.loads(notice.body)
    assert (said["stage"], said["weight"], said["event"]) == (1, 500, "stage")
    assert SECRET not in notice.body
    assert "reason" not in said


def test_a_failing_receiver_is_tried_again_and_given_up_after_days() -> None:
    store, now, sent = told_store(NotifyTarget("ops")), NOW, list[bytes]()
    kill(store, "math", "on fire", "ada", NOW)

    def send(target: str, body: bytes) -> str:
        sent.append(body)
        return "status 500"

    done = deliver(store, send, lambda: now, dead_after=100.0)
    assert (done.sent, done.failed, done.dead) == (0, 1, 0)
    assert deliver(store, send, lambda: now).failed == 0, "not due yet"
    for _ in range(20):
        with store.transaction() as tx:
            (notice,) = tx.notices.list(9)
        if notice.state is NoticeState.DEAD:
            break
        now = notice.due_at
        deliver(store, send, lambda at=now: at, dead_after=100.0)
    assert notice.state is NoticeState.DEAD
    assert notice.error == "status 500"
    assert len(set(sent)) == 1, "the very same bytes, with the same id, on every try"
    assert now - NOW > 100.0


def test_a_process_that_ends_before_it_says_so_sends_again() -> None:
    """At least once: the claim's lease runs out and the same message goes out again."""
    store, sent = told_store(NotifyTarget("ops")), list[bytes]()
    kill(store, "math", "on fire", "ada", NOW)

    def crash(target: str, body: bytes) -> str:
        sent.append(body)
        raise SystemExit

    with pytest.raises(SystemExit):
        deliver(store, crash, lambda: NOW)
    assert deliver(store, lambda t, b: sent.append(b) or "", lambda: NOW + 1).sent == 0
    assert deliver(store, lambda t, b: sent.append(b) or "", lambda: NOW + 61).sent == 1
    assert sent[0] == sent[1]
    assert deliver(store, lambda t, b: "", lambda: NOW + 9_999).sent == 0


def test_a_transition_never_waits_for_a_receiver() -> None:
    """While a receiver is being talked to, no transaction is open: the route can be killed from within the call."""
    store = told_store(NotifyTarget("ops"))
    pause(store, "math", "looks odd", "ada", NOW)

    def slow(target: str, body: bytes) -> str:
        kill(store, "math", "on fire", "ada", NOW + 5)
        return ""

    assert deliver(store, slow, lambda: NOW + 1).sent == 1
    with store.transaction() as tx:
        flag = tx.flags.get("math")
    assert flag is not None
    assert flag.killed


def test_a_kill_without_a_readable_policy_is_a_kill_all_the_same() -> None:
    store = InMemoryStore()
    add_route(store, "math")
    store.state.policies.clear()
    assert kill(store, "math", "on fire", "ada", NOW).killed
    assert bodies(store) == []


def test_a_receiver_believes_only_what_is_signed_and_fresh() -> None:
    header = sign("secret", b"body", 1_000)
    verify("secret", b"body", header, 1_299.0)
    for secret, body, given, now in (
        ("other", b"body", header, 1_000.0),
        ("secret", b"bodY", header, 1_000.0),
        ("secret", b"body", header.replace("t=1000", "t=1001"), 1_000.0),
        ("secret", b"body", header, 1_301.0),
        ("secret", b"body", header, 699.0),
        ("secret", b"body", "t=,v1=", 1_000.0),
        ("secret", b"body", "nonsense", 1_000.0),
        ("secret", b"body", header.replace("v1=", "v1=é"), 1_000.0),
    ):
        with pytest.raises(UsageError):
            verify(secret, body, given, now)


def test_back_off_doubles_up_to_an_hour_and_jitter_spreads_it() -> None:
    draw = random.Random(1)
    for tries in range(1, 40):
        low, high = delay(tries, 0.0), delay(tries, 1.0)
        assert high == min(LAST_SECONDS, FIRST_SECONDS * 2 ** (tries - 1))
        assert low == high / 2
        assert low <= delay(tries, draw.random()) <= high
    shares = {jitter(f"id-{n}", 1) for n in range(100)}
    assert len(shares) == 100
    assert all(0 <= share < 1 for share in shares)


def test_a_decision_is_told_as_a_verdict_and_one_that_waits_for_a_person_as_an_approval() -> None:
    store = told_store(NotifyTarget("ops"))
    with store.transaction() as tx:
        policy = pinned_policy(tx, locked_rollout(tx, "math"))
        for reason in ("not_yet", "awaiting_approval"):
            decision = {"kind": "stay", "reason": reason, "sentence": SECRET}
            tell(tx, policy, "decision", {"decision": decision, "state": "shadow", "stage": 0, "gates": [SECRET]}, NOW)
        tx.commit()
    assert [(b["event"], b["reason"], b["decided"]) for b in bodies(store)] == [
        ("approval", "awaiting_approval", "stay"),
        ("verdict", "not_yet", "stay"),
    ]
    assert SECRET not in json.dumps(bodies(store))
