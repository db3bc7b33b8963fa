"""The only place that builds adapters. Imports late, so that no command loads what it does not use (torch takes seconds)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from canary.config import Settings
from canary.domain.errors import UsageError
from canary.domain.policy import Policy, Subject
from canary.domain.traffic import Prompt
from canary.flow.leading import Lock, NoLock
from canary.flow.ports import Observer, ShadowEngine, Store
from canary.flow.retention import Days

if TYPE_CHECKING:
    from canary.flow.tools.preflight_facts import RouteFacts
    from canary.flow.tools.signed import SigningKey
    from canary.flow.tools.sweep_facts import SweepEngine
    from canary.kills.board import KillBoard
    from canary.kills.guard import KillGuard

DATABASE = "canary"
DAY_SECONDS = 86_400.0
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
def await_database(given: Settings, tell: Callable[[str], object]) -> Iterator[str]:
    """As `open_database`, for a service that must start and kill while the database is away: it is opened when it comes back.

    Args:
        tell: called with a sentence when the start goes on without.

    Raises:
        UsageError: the address is no Postgres's, or the server is too old.
    """
    from canary.store.embedded import EmbeddedPostgres
    from canary.store.keeper import watched
    from canary.store.migrate import migrate as upgrade
    from canary.store.patience import Patience

    with ExitStack() as ending:
        if given.database_url:
            url = given.database_url
            patience = Patience(lambda: upgrade(url), tell)
        else:
            server = ending.enter_context(watched(EmbeddedPostgres(given.home)))
            url = server.url_of(DATABASE)

            def attempt() -> None:
                server.start()
                upgrade(server.create_database(DATABASE))

            patience = Patience(attempt, tell)
        ending.callback(patience.close)
        patience.begin()
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


def days_of(store: Store) -> Days | None:
    """The store's daily partitions, for retention; None where it keeps no days."""
    from canary.store.unit_of_work import PostgresStore

    return store if isinstance(store, PostgresStore) else None


def leader_lock(store: Store) -> Lock:
    """The lock that processes on the store's database elect a leader by; a store of one process needs none."""
    from canary.store.leader import LeaderLock
    from canary.store.unit_of_work import PostgresStore

    return LeaderLock(store.url.render_as_string(hide_password=False)) if isinstance(store, PostgresStore) else NoLock()


def kill_board(given: Settings, observer: Observer) -> KillBoard:
    """The kills that the home's journal and kill file tell of; those that are over are kept in short when content is old."""
    from canary.kills.board import KillBoard

    return KillBoard(observer, given.home, lifetime=given.content_days * DAY_SECONDS)


def kill_guard(store: Store, given: Settings, observer: Observer) -> KillGuard:
    """What makes a process that serves no flags obey the home's journal and kill file."""
    from canary.kills.guard import KillGuard

    return KillGuard(store, observer, kill_board(given, observer))


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


def preflight_facts(
    policy: Policy,
    prompts: Sequence[Prompt],
    *,
    memory: float | None,
    context: int | None,
    threads: int | None,
    progress: Callable[[str, int, int], None],
) -> RouteFacts:
    """What preflight judges; see `engine.preflight.collect`."""
    from canary.engine.preflight import collect

    cache = settings().cache
    return collect(policy, cache, prompts, memory=memory, context=context, threads=threads, progress=progress)


def open_sweep(policy: Policy, *, num_rows: int, threads: int | None) -> SweepEngine:
    """The target of a policy, ready to be measured."""
    from canary.engine.sweep import Bench

    return Bench.open(policy, settings().cache, num_rows=num_rows, threads=threads)


def prepare_model(name: str, progress: Progress | None = None) -> Path:
    """An ordinary model directory for a name or path, converted once into the cache."""
    from canary.engine.checkpoints import prepare

    return prepare(name, settings().cache, progress)


def signing_key(home: Path) -> SigningKey:
    """The key that signs this home's flag documents, made at its first use.

    Raises:
        UsageError: its file is damaged.
    """
    from canary.store.signing_key import load_or_create

    return load_or_create(home)
