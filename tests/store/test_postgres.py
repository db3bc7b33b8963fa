"""What only Postgres can do wrong: not be there, be full, lose a connection, let numbers appear out of order."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy import text

from canary.domain.errors import CanaryError, ConflictError, UnreachableError, UsageError
from canary.domain.flag import Flag
from canary.flow.ports import Claim, Transaction
from canary.store.migrate import migrate
from canary.store.packing import VERSION
from canary.store.unit_of_work import PostgresStore
from tests.store.samples import ROLLOUT, pair, prompt

OTHERS = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database()"
FLAG = Flag("math", 5, "salt")
FULL = """
create function fail() returns trigger language plpgsql as $$
begin raise exception 'no room' using errcode = 'disk_full'; end $$;
create trigger full_disk before insert on {table} for each row execute function fail();
"""


def lease(tx: Transaction, limit: int, now: float = 0.0) -> list[Claim]:
    return tx.claims.claim(ROLLOUT, limit=limit, before_ordinal=None, worker="w", now=now, lease_seconds=1.0, max_retries=9)


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statement.encode())


@pytest.mark.parametrize("where", ["@/canary?host=/nonexistent", "@127.0.0.1:1/canary?password=secret"])
def test_an_unreachable_database_is_named_without_its_password(where: str) -> None:
    url = f"postgresql://canary:secret{where}"
    store = PostgresStore(url)
    with pytest.raises(UnreachableError) as raised, store.transaction():
        pass
    assert "secret" not in str(raised.value)
    assert raised.value.where.startswith("postgresql+psycopg://canary:***@")
    assert "CANARY_DATABASE_URL" in raised.value.remedy
    with pytest.raises(UnreachableError, match="CANARY_DATABASE_URL"):
        migrate(url)


@pytest.mark.parametrize("url", ["", "here", "sqlite:///canary.db", "mysql://root@localhost/canary"])
def test_another_kind_of_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"CANARY_DATABASE_URL.*not the address of a Postgres"):
        PostgresStore(url)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg", "postgresql+asyncpg"])
def test_every_way_of_writing_the_address_gives_the_one_driver(scheme: str) -> None:
    assert PostgresStore(f"{scheme}://canary@/canary").url.drivername == "postgresql+psycopg"


def test_a_database_without_tables_says_what_to_do(empty_database: str) -> None:
    store = PostgresStore(empty_database)
    with pytest.raises(UnreachableError, match=r"no Canary tables.*canary serve"), store.transaction() as tx:
        tx.flags.snapshot(1.0)
    store.close()


@pytest.mark.parametrize("table", ["prompts", "pairs"])
def test_a_full_disk_keeps_nothing_of_the_transaction(database: str, postgres_store: PostgresStore, table: str) -> None:
    with postgres_store.transaction() as tx:
        tx.rollouts.put(ROLLOUT)
        tx.prompts.add_many([prompt(0)], 1.0)
        tx.commit()
    execute(database, FULL.format(table=table))

    def write() -> None:
        with postgres_store.transaction() as tx:
            (claim,) = lease(tx, 1)
            tx.claims.finish(claim, failed=False)
            tx.flags.put(FLAG)
            tx.pairs.add(pair(claim), 2.0)
            tx.prompts.add_many([prompt(1)], 2.0)
            tx.commit()

    with pytest.raises(UnreachableError, match="no room left") as raised:
        write()
    assert "Free disk space" in raised.value.remedy
    with postgres_store.transaction() as tx:
        assert (tx.prompts.count("math"), tx.flags.get("math")) == (1, None)
        assert tx.claims.open_count("math", "epoch", 1) == 0
        assert tx.pairs.ids("math", "epoch", 1) == []


def test_a_lost_connection_is_unreachable_and_the_next_transaction_works(database: str, postgres_store: PostgresStore) -> None:
    def write() -> None:
        with postgres_store.transaction() as tx:
            tx.flags.put(FLAG)
            execute(database, OTHERS)
            tx.commit()

    with pytest.raises(UnreachableError, match="does not answer"):
        write()
    with postgres_store.transaction() as tx:
        assert tx.flags.get("math") is None


def test_the_same_rollout_started_twice_at_once_is_a_conflict(postgres_store: PostgresStore) -> None:
    raised: list[BaseException] = []

    def other() -> None:
        try:
            with postgres_store.transaction() as tx:
                tx.rollouts.put(replace(ROLLOUT, reason="other"))
                tx.commit()
        except ConflictError as error:
            raised.append(error)

    thread = threading.Thread(target=other)
    with postgres_store.transaction() as tx:
        tx.rollouts.put(ROLLOUT)
        thread.start()
        _until_waiting(postgres_store)
        tx.commit()
    thread.join()
    assert len(raised) == 1
    with postgres_store.transaction() as tx:
        assert tx.rollouts.get("math") == ROLLOUT


def test_a_conflict_never_quotes_the_row(postgres_store: PostgresStore) -> None:
    with pytest.raises(ConflictError, match="ck_flags_weight") as raised, postgres_store.transaction() as tx:
        tx.flags.put(replace(FLAG, weight=10_001, salt="the secret salt"))
    assert "salt" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_prompts_become_visible_in_the_order_of_their_numbers(postgres_store: PostgresStore) -> None:
    """A claim looks only beyond the last prompt it saw, so a smaller number must not appear later."""

    def late() -> None:
        with postgres_store.transaction() as tx:
            tx.prompts.add_many([prompt(2)], 1.0)
            tx.commit()

    thread = threading.Thread(target=late)
    with postgres_store.transaction() as tx:
        tx.prompts.add_many([prompt(1)], 2.0)
        thread.start()
        _until_waiting(postgres_store)
        tx.commit()
    thread.join()
    with postgres_store.transaction() as tx:
        found = lease(tx, 5)
    assert [c.prompt.request_id for c in found] == ["request-1", "request-2"]


def test_an_open_claim_whose_prompt_is_gone_becomes_a_tombstone(database: str, postgres_store: PostgresStore) -> None:
    with postgres_store.transaction() as tx:
        tx.prompts.add_many([prompt(0), prompt(1)], 0.0)
        (first, _) = lease(tx, 5)
        tx.commit()
    execute(database, "delete from prompts where request_id = 'request-0'")
    with postgres_store.transaction() as tx:
        again = lease(tx, 5, now=5.0)
        tx.commit()
    assert [(c.ordinal, c.tries) for c in again] == [(1, 1)]
    with postgres_store.transaction() as tx:
        (tombstone,) = tx.pairs.contiguous("math", "epoch", 1, after=0, limit=5)
        assert (first.ordinal, tombstone.ordinal, tombstone.increments) == (0, 0, None)


def test_what_sql_filters_by_is_a_column_and_equals_the_counts(database: str, postgres_store: PostgresStore) -> None:
    with postgres_store.transaction() as tx:
        tx.prompts.add_many([prompt(0)], 0.0)
        (claim,) = lease(tx, 1)
        tx.pairs.add(pair(claim), 1.0)
        tx.commit()
    with postgres_store._engine.connect() as connection:
        row = connection.execute(
            text(
                "select candidate_num_tokens, candidate_num_steps, candidate_num_drafts, candidate_num_draft_tokens,"
                " candidate_num_accepted_tokens, candidate_num_speculative_tokens, candidate_num_cut, candidate_finish_reason,"
                " candidate_total_seconds, baseline_total_seconds, baseline_timed_tokens, baseline_error, stratum, first"
                " from pairs"
            )
        ).one()
    assert tuple(row) == (3, 2, 1, 2, 1, 4, 0, "stop", None, 0.1 + 0.2, 2, "the baseline failed", "sampled", "candidate")


def test_a_pair_packed_by_another_version_is_refused(database: str, postgres_store: PostgresStore) -> None:
    with postgres_store.transaction() as tx:
        tx.prompts.add_many([prompt(0)], 0.0)
        (claim,) = lease(tx, 1)
        tx.pairs.add(pair(claim), 1.0)
        tx.commit()
    execute(database, f"update pairs set packing = {VERSION + 1}")
    with postgres_store.transaction() as tx, pytest.raises(CanaryError, match=f"version {VERSION + 1}"):
        tx.pairs.get(claim.pair_id)


def _until_waiting(store: PostgresStore) -> None:
    """Until some connection to this database waits for a lock."""
    statement = text("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
    deadline = time.monotonic() + 120
    while True:
        with store._engine.connect() as connection:
            if connection.scalars(statement).one():
                return
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.01)
