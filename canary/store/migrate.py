"""Brings a database to the newest schema, from a checkout or from an installed wheel."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine

from canary.domain.errors import UsageError
from canary.shipped import shipped
from canary.store.partitions import ensure_partitions
from canary.store.problems import read_url, shown, translated

OLDEST = 150_000

# Alembic's `context` is one per process, so threads take turns here; processes take turns at the lock in `env.py`.
_turn = threading.Lock()


def alembic_config(connection: Connection) -> Config:
    """Alembic's configuration for one open connection."""
    config = Config()
    config.set_main_option("script_location", str(shipped("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def migrate(url: str) -> None:
    """Upgrade the database to the newest schema and make the coming week's partitions; several processes may do so at once.

    Raises:
        UnreachableError: the database does not answer or is full.
        UsageError: the address is not a Postgres one, or its server is older than 15.
    """
    address = read_url(url)
    engine = create_engine(address, hide_parameters=True)
    try:
        with _turn, translated(address), engine.begin() as connection:
            version = connection.connection.dbapi_connection.info.server_version  # type: ignore[union-attr]
            if version < OLDEST:
                raise UsageError(
                    f"the server is Postgres {version // 10_000}",
                    where=shown(address),
                    remedy="Canary needs Postgres 15 or newer.",
                )
            command.upgrade(alembic_config(connection), "head")
            ensure_partitions(connection, datetime.now(UTC).date(), days=7)
    finally:
        engine.dispose()
