"""Answers by Idempotency-Key, so that a repeated write is answered as the first one was; nothing here runs a request."""

from __future__ import annotations

from sqlalchemy import Column, Connection, Double, Index, Integer, LargeBinary, Table, Text, delete, update
from sqlalchemy.dialects.postgresql import insert

from canary.flow.ports import KeptAnswer
from canary.store.tables import metadata

# What writes with an Idempotency-Key were answered; `status` is null until they are.
idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("caller", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("status", Integer),
    Column("headers", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("started_at", Double, nullable=False),
    Index(None, "started_at"),
)


class Answers:
    """`AnswerStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, caller: str, key: str, fingerprint: str, now: float, *, stalled_before: float) -> KeptAnswer | None:
        """Take the key for one request; None where it is ours, else what is known of it."""
        columns = idempotency_keys.c
        values = {
            "caller": caller,
            "key": key,
            "fingerprint": fingerprint,
            "status": None,
            "headers": "",
            "body": b"",
            "started_at": now,
        }
        statement = insert(idempotency_keys).values(values)
        taken = statement.on_conflict_do_update(
            constraint=idempotency_keys.primary_key,
            set_={"started_at": now},
            where=(columns.status.is_(None) & (columns.started_at < stalled_before) & (columns.fingerprint == fingerprint)),
        ).returning(columns.key)
        if self._connection.execute(taken).first() is not None:
            return None
        one = (columns.caller == caller) & (columns.key == key)
        row = self._connection.execute(idempotency_keys.select().where(one)).one()
        return KeptAnswer(row.fingerprint, row.status, row.headers, bytes(row.body))

    def finish(self, caller: str, key: str, status: int, headers: str, body: bytes) -> None:
        """Keep the answer."""
        columns = idempotency_keys.c
        one = (columns.caller == caller) & (columns.key == key)
        self._connection.execute(update(idempotency_keys).where(one).values(status=status, headers=headers, body=body))

    def forget(self, caller: str, key: str) -> None:
        """Let the key be used again: its request came to nothing."""
        columns = idempotency_keys.c
        self._connection.execute(delete(idempotency_keys).where(columns.caller == caller, columns.key == key))

    def expire(self, before: float) -> int:
        """Drop what was begun before that moment; returns how many."""
        columns = idempotency_keys.c
        return self._connection.execute(delete(idempotency_keys).where(columns.started_at < before)).rowcount
