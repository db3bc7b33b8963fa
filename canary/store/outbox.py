"""Notices on their way to webhooks, and their table; each row was written in the transaction of what it tells of."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Double,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    select,
    update,
)
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.dialects.postgresql import insert

from canary.domain.notices import Notice, NoticeState
from canary.store.tables import metadata

notices = Table(
    "notices",
    metadata,
    Column("seq", BigInteger, Identity(), primary_key=True),
    Column("notice_id", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("error", Text, nullable=False),
    Unique("notice_id"),
    CheckConstraint("state in ('pending', 'sent', 'dead')", name="state"),
    Index(None, "state", "due_at"),
)

FIELDS = [column for column in notices.c if column.name != "seq"]


class Notices:
    """`NoticeStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, given: Sequence[Notice]) -> None:
        """Keep new notices; one whose id is known changes nothing."""
        if given:
            rows = [{column.name: getattr(each, column.name) for column in FIELDS} for each in given]
            self._connection.execute(insert(notices).values(rows).on_conflict_do_nothing())

    def claim(self, now: float, limit: int, lease_seconds: float) -> list[Notice]:
        """Pending ones that are due, oldest first; nobody else gets them before the lease is over."""
        due = (notices.c.state == NoticeState.PENDING) & (notices.c.due_at <= now)
        chosen = select(notices).where(due).order_by(notices.c.due_at, notices.c.seq).limit(limit)
        rows = self._connection.execute(chosen.with_for_update(skip_locked=True)).all()
        if rows:
            ids = notices.c.seq.in_([row.seq for row in rows])
            self._connection.execute(update(notices).where(ids).values(due_at=now + lease_seconds))
        return [_notice(row) for row in rows]

    def put(self, notice: Notice) -> None:
        """Write how a try ended, unless the notice was sent meanwhile."""
        values = {name: getattr(notice, name) for name in ("due_at", "tries", "state", "error")}
        one = (notices.c.notice_id == notice.notice_id) & (notices.c.state == NoticeState.PENDING)
        self._connection.execute(update(notices).where(one).values(values))

    def list(self, limit: int, state: NoticeState | None = None) -> list[Notice]:
        """The newest, of one state or of all."""
        chosen = select(notices).order_by(notices.c.seq.desc()).limit(limit)
        return [_notice(r) for r in self._connection.execute(chosen if state is None else chosen.where(notices.c.state == state))]

    def forget(self, before: float) -> int:
        """Drop what was sent or given up before a moment; returns how many."""
        old = (notices.c.state != NoticeState.PENDING) & (notices.c.due_at < before)
        return self._connection.execute(notices.delete().where(old)).rowcount


def _notice(row: object) -> Notice:
    found = {column.name: getattr(row, column.name) for column in FIELDS}
    return Notice(**found | {"state": NoticeState(found["state"])})
