"""The only place that builds adapters. Imports late, so that no command loads what it does not use (torch takes seconds)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from canary.config import Settings
from canary.domain.errors import UsageError
from canary.domain.policy import Policy, Subject
from canary.flow.ports import ShadowEngine, Store

DATABASE = "canary"
Progress = Callable[[str, float], None]


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The process's settings, read once."""
    return Settings()


@contextmanager
def open_database(given: Settings | None = None, *, migrate: bool = True) -> Iterator[str]:
    """URL of a database: the configured one, else the embedded server's (started if nobody has, stopped if it was us).

    Args:
        migrate: bring it to this version's schema; a command that only reads or kills leaves it as it is.

    Raises:
        UnreachableError: the database does not answer or cannot be started.
    """
    from canary.store.embedded import EmbeddedPostgres
    from canary.store.keeper import kept
    from canary.store.migrate import migrate as upgrade

    chosen = given or settings()
    if chosen.database_url:
        if migrate:
            upgrade(chosen.database_url)
        yield chosen.database_url
        return
    with kept(EmbeddedPostgres(chosen.home)) as server:
        url = server.create_database(DATABASE)
        if migrate:
            upgrade(url)
        yield url


@contextmanager
def open_store(given: Settings | None = None, *, migrate: bool = True) -> Iterator[Store]:
    """A store on a database; see `open_database`."""
    with open_database(given, migrate=migrate) as url, store_on(url) as store:
        yield store


@contextmanager
def store_on(url: str) -> Iterator[Store]:
    """A store on a database that is migrated already."""
    from canary.store.unit_of_work import PostgresStore

    store = PostgresStore(url)
    try:
        yield store
    finally:
        store.close()


def housekeeping(store: Store) -> Callable[[], object]:
    """What the owner of a store does now and then: the coming days' partitions."""
    from canary.store.unit_of_work import PostgresStore

    if isinstance(store, PostgresStore):
        return lambda: store.ensure_partitions(datetime.now(UTC).date())
    return lambda: None


def memory_store() -> Store:
    """An empty store in dictionaries."""
    from canary.inmemory import InMemoryStore

    return InMemoryStore()


def open_engine(policy: Policy, *, threads: int | None = None) -> ShadowEngine:
    """The engine that a policy's subject names, with its models loaded.

    Raises:
        UsageError: Canary cannot run that engine itself.
        ModelError: the target or drafter cannot be used.
    """
    subject: Subject = policy.subject
    if subject.engine != "own":
        raise UsageError(
            f"engine {subject.engine!r} is not one that Canary runs itself", where="subject.engine", remedy="Use `own`."
        )
    from canary.engine.runner import OwnEngine

    return OwnEngine.open(subject, policy.shadow, settings().cache, threads=threads)


def prepare_model(name: str, progress: Progress | None = None) -> Path:
    """An ordinary model directory for a name or path, converted once into the cache."""
    from canary.engine.checkpoints import prepare

    return prepare(name, settings().cache, progress)
