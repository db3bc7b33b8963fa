"""Alembic's entry: upgrades inside one transaction and one advisory lock, so that several processes may start at once."""

from __future__ import annotations

import os
from typing import Any

from alembic import context
from sqlalchemy import Connection, create_engine, text

from canary.store import flag_tables as flag_tables
from canary.store import idempotency as idempotency
from canary.store import job_runs as job_runs
from canary.store import keys as keys
from canary.store import leader as leader
from canary.store import outbox as outbox
from canary.store import proposals as proposals
from canary.store import shadow_runs as shadow_runs
from canary.store.problems import read_url
from canary.store.tables import metadata

UPGRADE_LOCK = 0x43414E4152590003


def run(connection: Connection) -> None:
    partitions = set(connection.scalars(text("select relname from pg_class where relispartition and relkind = 'r'")))

    def include_name(name: str | None, kind: str, _parents: Any) -> bool:
        return not (kind == "table" and name in partitions)

    context.configure(connection=connection, target_metadata=metadata, include_name=include_name, compare_server_default=True)
    with context.begin_transaction():
        connection.execute(text(f"select pg_advisory_xact_lock({UPGRADE_LOCK})"))
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with create_engine(read_url(os.environ.get("CANARY_DATABASE_URL", ""))).connect() as opened:
        run(opened)
        opened.commit()
