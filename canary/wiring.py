"""The only place that builds adapters. Imports late, so that no command loads what it does not use (torch takes seconds)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
def open_database(given: Settings | None = None) -> Iterator[str]:
    """URL of a migrated database: the configured one, else the embedded server's (started if nobody has, stopped if it was us).

    Raises:
        UnreachableError: the database does not answer or cannot be started.
    """
    from canary.store.embedded import EmbeddedPostgres
    from canary.store.keeper import kept
    from canary.store.migrate import migrate

    chosen = given or settings()
    if chosen.database_url:
        migrate(chosen.database_url)
        yield chosen.database_url
        return
    with kept(EmbeddedPostgres(chosen.home)) as server:
        url = server.create_database(DATABASE)
        migrate(url)
        yield url


@contextmanager
def open_store(given: Settings | None = None) -> Iterator[Store]:
    """A store on a migrated database; see `open_database`."""
    with open_database(given) as url, store_on(url) as store:
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
