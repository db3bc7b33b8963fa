"""What both stores do with keys, kept answers, pages of pairs and the chained audit log."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from canary.domain.access import Action, Key, Role
from canary.domain.chain import START, verify
from canary.flow.ports import KeptAnswer, Store
from canary.flow.tools import audits, keys
from canary.store.unit_of_work import PostgresStore
from tests.store import samples

KEY = Key("0123456789ab", "d" * 64, "ada", Role.OPERATOR, (Action.FLAGS, Action.KILL), ("math", "rag"), 0.1 + 0.2, 7.5, None)


def test_a_key_comes_back_to_the_bit(store: Store) -> None:
    with store.transaction() as tx:
        tx.keys.put(KEY)
        tx.commit()
    with store.transaction() as tx:
        assert tx.keys.get(KEY.key_id) == tx.keys.get(KEY.key_id, lock=True) == KEY
        assert tx.keys.list() == [KEY]
        assert tx.keys.get("unknown") is None


def test_keys_are_rotated_and_revoked(store: Store) -> None:
    made = keys.create_key(store, "ada", Role.ADMIN, "root", 10.0, days=1)
    new = keys.rotate_key(store, made.key.key_id, "root", 20.0, grace_seconds=5)
    ended = keys.revoke_key(store, new.key.key_id, "root", 30.0)
    assert keys.revoke_key(store, new.key.key_id, "root", 40.0) == ended
    assert [(k.key_id, k.expires_at, k.revoked_at) for k in keys.list_keys(store)] == [
        (new.key.key_id, 20.0 + 86_400, 30.0),
        (made.key.key_id, 25.0, None),
    ]
    with store.transaction() as tx:
        kinds = [event["kind"] for event in tx.audit.list(keys.AUDIT_ROUTE)]
        assert kinds == ["key_revoked", "key_rotated", "key_created", "key_created"]
        assert made.secret not in str(tx.audit.list(keys.AUDIT_ROUTE))


def test_a_kept_answer(store: Store) -> None:
    with store.transaction() as tx:
        assert tx.answers.begin("ada", "k", "one", 100.0, stalled_before=40.0) is None
        assert tx.answers.begin("ada", "k", "two", 101.0, stalled_before=41.0) == KeptAnswer("one", None, "", b"")
        assert tx.answers.begin("grace", "k", "two", 101.0, stalled_before=41.0) is None
        assert tx.answers.begin("ada", "k", "two", 300.0, stalled_before=240.0) == KeptAnswer("one", None, "", b"")
        assert tx.answers.begin("ada", "k", "one", 300.0, stalled_before=240.0) is None
        tx.answers.finish("ada", "k", 201, "{}", b"\x00body")
        assert tx.answers.begin("ada", "k", "one", 900.0, stalled_before=840.0) == KeptAnswer("one", 201, "{}", b"\x00body")
        tx.answers.forget("ada", "k")
        assert tx.answers.begin("ada", "k", "two", 901.0, stalled_before=841.0) is None
        assert tx.answers.expire(500.0) == 1
        assert tx.answers.expire(500.0) == 0


def test_pages_of_pairs_leave_out_what_is_none(filled: Store) -> None:
    with filled.transaction() as tx:
        claims = tx.claims.claim(
            samples.ROLLOUT, limit=5, before_ordinal=None, worker="w", now=1.0, lease_seconds=60, max_retries=1
        )
        for claim in claims[:4]:
            if claim.ordinal != 1:
                tx.pairs.add(samples.pair(claim), 2.0)
            assert tx.claims.finish(claim, failed=claim.ordinal == 1)
        tx.commit()
        place = (samples.ROLLOUT.route, samples.ROLLOUT.epoch, samples.ROLLOUT.attempt)
        first = tx.pairs.page(*place, after=-1, limit=2)
        assert [pair.ordinal for pair in first] == [0, 2]
        assert first[0] == samples.pair(claims[0])
        assert [pair.ordinal for pair in tx.pairs.page(*place, after=2, limit=2)] == [3]
        assert tx.pairs.page(*place, after=3, limit=2) == []


def write_events(store: Store, count: int = 3) -> None:
    with store.transaction() as tx:
        for number in range(count):
            tx.audit.append(
                "math", "decision" if number % 2 else "policy", "ada\ud800", {"n": number, "x": float("inf")}, 1.1 + number
            )
            tx.audit.append("rag", "decision", "policy", {}, 1e9 / 3)
        tx.commit()


def test_the_log_is_chained_by_route_and_read_by_pages(store: Store) -> None:
    """A3.27"""
    write_events(store)
    with store.transaction() as tx:
        events = tx.audit.chain("math", after=0, limit=10)
        assert [event["body"]["n"] for event in events] == [0, 1, 2]  # type: ignore[index]
        assert [event["previous"] for event in events] == [START, *(event["digest"] for event in events[:-1])]
        assert verify(events) is None
        assert tx.audit.routes() == ["math", "rag"]
        newest = tx.audit.page(None, before=None, limit=2)
        assert [event["route"] for event in newest] == ["rag", "math"]
        older = tx.audit.page(["math"], before=int(str(newest[-1]["id"])), limit=10)
        assert older == events[1::-1]
        assert [event["kind"] for event in tx.audit.page(["math"], before=None, limit=10, kind="policy")] == ["policy"] * 2
        assert tx.audit.page([], before=None, limit=10) == []
        shown = tx.audit.list("math", 1)[0]
        assert set(shown) == {"id", "route", "kind", "actor", "body", "at"}
        report = audits.verify_chain(tx, "math")
        assert (report.ok, report.events, report.head) == (True, 3, events[-1]["digest"])


def test_both_stores_make_one_chain(database: str) -> None:
    from canary.inmemory import InMemoryStore

    one, other = InMemoryStore(), PostgresStore(database)
    digests = []
    for store in (one, other):
        with store.transaction() as tx:
            for number in range(3):
                tx.audit.append("math", "policy", "ada", {"b": [1.5, None, "é"], "a": {"n": number}}, 1_700_000_000.123456)
            digests.append([event["digest"] for event in tx.audit.chain("math", after=0, limit=10)])
    other.close()
    assert digests[0] == digests[1]


@pytest.mark.parametrize("change", ["update audit set actor = 'nobody'", "delete from audit", "truncate audit"])
def test_the_database_itself_refuses_to_change_the_log(database: str, change: str) -> None:
    """A3.27: append-only, also for whoever reaches the database."""
    store = PostgresStore(database)
    write_events(store)
    engine = create_engine(database)
    with engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
        connection.execute(text(change))
    engine.dispose()
    with store.transaction() as tx:
        assert audits.verify_chain(tx, "math").events == 3
    store.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("update audit set actor = 'nobody' where id = :second", "changed"),
        ("update audit set body = '{}' where id = :second", "changed"),
        ("update audit set at = at + interval '1 second' where id = :second", "changed"),
        ("delete from audit where id = :second", "does not follow"),
        ("update audit set digest = null where id = :second", "carries no digest"),
    ],
)
def test_a_superuser_s_change_is_found(database: str, change: str, why: str) -> None:
    """A3.27: whoever drops the trigger and changes an event breaks the chain."""
    store = PostgresStore(database)
    write_events(store)
    with store.transaction() as tx:
        second = tx.audit.chain("math", after=0, limit=10)[1]["id"]
    engine = create_engine(database)
    with engine.begin() as connection:
        connection.execute(text("alter table audit disable trigger all"))
        connection.execute(text(change), {"second": second})
    engine.dispose()
    with store.transaction() as tx:
        found = audits.verify_chain(tx, "math").break_
        assert found is not None
        assert why in found.why
        assert audits.verify_chain(tx, "rag").ok
    store.close()


def test_writers_of_one_route_queue_so_that_the_chain_never_forks(database: str) -> None:
    store = PostgresStore(database, pool_size=8)
    together = threading.Barrier(6)

    def write(number: int) -> None:
        together.wait(30)
        for _ in range(5):
            with store.transaction() as tx:
                tx.audit.append("math", "policy", f"writer {number}", {}, 1.0)
                tx.commit()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with store.transaction() as tx:
        report = audits.verify_chain(tx, "math")
    store.close()
    assert (report.ok, report.events) == (True, 30)
