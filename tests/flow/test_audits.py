"""What an audit event rests on, and that a route's log leads to the rollout that is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from canary.domain.chain import digest
from canary.domain.moves import facts_of
from canary.flow.ports import Store
from canary.flow.tools import audits, commands
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.walk.control import tick
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, Notes, add_route, decide_now, policy_of


@pytest.fixture
def store() -> InMemoryStore:
    made = InMemoryStore()
    add_route(made, "math", epoch="")
    return made


def assert_replayed(store: Store) -> None:
    with store.transaction() as tx:
        rollout = tx.rollouts.get("math")
        assert rollout is not None
        replayed = audits.replay(audits.events_of(tx, "math"))
        assert replayed is not None
        assert {name: replayed[name] for name in facts_of(rollout)} == facts_of(rollout)
        assert audits.diverged(tx, rollout) == []
        assert audits.verify_chain(tx, "math").ok


def again(store: Store) -> None:
    text = dump(policy_of("math", mirror_rate=0.5))
    apply_policy(store, load_text(text, name="math"), text, NOW + 60, "ada")


def order(name: str) -> Callable[[Store], object]:
    command = getattr(commands, name)
    return lambda store: command(store, "math", "looked at it", "ada", NOW + 100)


def step(store: Store) -> None:
    tick(store, "math", NOW + 200_000, Notes())


@pytest.mark.parametrize(
    "orders",
    [
        (),
        (step,),
        (order("kill"),),
        (order("kill"), step, order("unkill"), step),
        (again, order("kill"), step, order("unkill"), again),
        (order("pause"), order("resume"), step),
        (order("pause"), order("retry"), step, order("abort")),
        (order("abort"), order("kill"), order("unkill")),
    ],
)
def test_the_log_replays_to_the_stored_row(store: InMemoryStore, orders: tuple[Callable[[Store], object], ...]) -> None:
    """A3.14, A3.27: after every order, kill and decision, the log alone says where the rollout stands."""
    assert_replayed(store)
    for act in orders:
        act(store)
        assert_replayed(store)


def test_a_row_that_nobody_logged_is_noticed(store: InMemoryStore) -> None:
    with store.transaction() as tx:
        rollout = tx.rollouts.get("math")
        assert rollout is not None
        moved = replace(rollout, stage=2, killed=True, version=rollout.version + 1)
        tx.rollouts.put(moved)
        assert audits.diverged(tx, moved) == ["stage", "killed"]
        assert audits.diverged(tx, replace(moved, route="nowhere")) == list(facts_of(moved))


def test_an_order_carries_the_evidence_that_there_was(store: InMemoryStore) -> None:
    """A3.26, A3.27: the event itself holds every gate as it stood, and a digest over all that went in."""
    decide_now(store, "math", at=NOW)
    commands.pause(store, "math", "looked at it", "ada", NOW + 100)
    with store.transaction() as tx:
        event = tx.audit.list("math", 1)[0]
        rollout = tx.rollouts.get("math")
        assert rollout is not None
        frozen = event["body"]["evidence"]  # type: ignore[index]
        assert (event["kind"], event["actor"], frozen["attempt"], frozen["num_pairs"]) == ("pause", "ada", rollout.attempt, 40)
        gates = frozen["gates"]
        assert [(g["gate"], g["value"], g["threshold"], g["n"]) for g in gates] == [
            ("speed", 1.5, 1.1, 40),
            ("bank_certificate", 1.5, 1.1, 40),
        ]
        assert frozen["digest"] == digest(gates)
        one = audits.grounds(tx, rollout, NOW)
        assert one["inputs"] != audits.grounds(tx, rollout, NOW + 1)["inputs"]
        assert one == audits.grounds(tx, rollout, NOW)
    decide_now(store, "math", ("fail", "pass"), at=NOW + 200)
    with store.transaction() as tx:
        kept = next(e for e in tx.audit.list("math") if e["kind"] == "pause")
        assert kept["body"]["evidence"] == frozen, "later evidence does not change what was said"  # type: ignore[index]
