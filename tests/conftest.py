"""What every test may ask for: a Postgres server for the whole run, and a migrated database of its own.

Under pytest-xdist the controller owns the server: a worker that finished first would shut it down under its siblings.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

from canary.store.embedded import EmbeddedPostgres
from canary.store.migrate import migrate

TEMPLATE = "migrated"
HOME = "canary_postgres_home"
_numbers = itertools.count()


class Server:
    """The run's Postgres, started at the first call and removed with all its data at the last."""

    home: Path | None = None
    postgres: EmbeddedPostgres | None = None

    @classmethod
    def start(cls) -> Path:
        if cls.home is None:
            cls.home = Path(tempfile.mkdtemp(prefix="canary-tests-"))
            cls.postgres = EmbeddedPostgres(cls.home, fast_unsafe=True)
            cls.postgres.start()
            migrate(cls.postgres.create_database(TEMPLATE))
        return cls.home

    @classmethod
    def remove(cls) -> None:
        if cls.home is not None and cls.postgres is not None:
            cls.postgres.stop()
            shutil.rmtree(cls.home)
            cls.home = None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: pytest.Item) -> None:
    """xdist's controller tells each worker where the server is."""
    node.workerinput[HOME] = str(Server.start())  # type: ignore[attr-defined]


def pytest_unconfigure() -> None:
    Server.remove()


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> EmbeddedPostgres:
    """The run's Postgres server; nobody but this file stops it."""
    given = getattr(request.config, "workerinput", {}).get(HOME)
    return EmbeddedPostgres(Path(given or Server.start()))


@pytest.fixture
def empty_database(postgres: EmbeddedPostgres) -> Iterator[str]:
    """Address of a new database without tables."""
    name = f"t{os.getpid()}_{next(_numbers)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[str]:
    """Address of a new, migrated database."""
    name = f"t{os.getpid()}_{next(_numbers)}"
    yield postgres.create_database(name, template=TEMPLATE)
    postgres.drop_database(name)
