"""API keys as they are stored: digests only, never a secret."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import CheckConstraint, Column, Connection, Double, Table, Text, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.types import ARRAY

from canary.domain.access import Action, Key, Role
from canary.store.packing import scrub
from canary.store.tables import metadata

# Of a key only its digest is kept; times are float8, as those of rollouts.
api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("routes", ARRAY(Text), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    CheckConstraint("role in ('viewer', 'operator', 'approver', 'admin')", name="role"),
)


class Keys:
    """`KeyStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, key_id: str, *, lock: bool = False) -> Key | None:
        """One key; `lock` keeps its row until the transaction ends."""
        statement = select(api_keys).where(api_keys.c.key_id == scrub(key_id))
        row = self._connection.execute(statement.with_for_update() if lock else statement).mappings().first()
        return None if row is None else _key(row)

    def list(self) -> list[Key]:
        """Every key, the newest first."""
        statement = select(api_keys).order_by(api_keys.c.created_at.desc(), api_keys.c.key_id)
        return [_key(row) for row in self._connection.execute(statement).mappings()]

    def put(self, key: Key) -> None:
        """Insert or replace."""
        values = asdict(key) | {
            "owner": scrub(key.owner),
            "role": key.role.value,
            "scopes": [scope.value for scope in key.scopes],
            "routes": [scrub(route) for route in key.routes],
        }
        statement = insert(api_keys).values(values)
        self._connection.execute(statement.on_conflict_do_update(constraint=api_keys.primary_key, set_=values))


def _key(row: Any) -> Key:
    values = dict(row)
    scopes, routes = tuple(Action(s) for s in row["scopes"]), tuple(row["routes"])
    return Key(**{**values, "role": Role(row["role"]), "scopes": scopes, "routes": routes})
