"""Canary's rows in Postgres: repositories, one unit of work, the migrations' runner and a Postgres of its own.

Nothing here decides anything, and nothing here commits on its own account: `flow` does.
"""

from canary.store.embedded import EmbeddedPostgres
from canary.store.migrate import migrate
from canary.store.unit_of_work import PostgresStore

__all__ = ["EmbeddedPostgres", "PostgresStore", "migrate"]
