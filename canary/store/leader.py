"""Who leads: the advisory lock that a living leader's connection holds, and the token that fences the writes of a past one.

The lock tells at once that a leader died; the token alone decides whether a write is kept, so a leader that slept undoes nothing.
"""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import BigInteger, Column, Connection, Double, Table, Text, create_engine, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from canary.domain.errors import CanaryError
from canary.store.problems import read_url, translated
from canary.store.tables import metadata

LEADER_LOCK = 0x43414E4152590005

leaders = Table(
    "leaders",
    metadata,
    Column("name", Text, primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("until", Double, nullable=False),
)


class Leaders:
    """`LeaderStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def take(self, name: str, holder: str, until: float) -> int:
        """Begin a term: a token above every earlier one. Waits for writes of the term before that are under way."""
        statement = insert(leaders).values(name=name, token=1, holder=holder, until=until)
        values = {"token": leaders.c.token + 1, "holder": holder, "until": until}
        taken = statement.on_conflict_do_update(index_elements=["name"], set_=values).returning(leaders.c.token)
        return int(self._connection.scalars(taken).one())

    def renew(self, name: str, token: int, until: float) -> bool:
        """Extend a term; False where it is over."""
        one = (leaders.c.name == name) & (leaders.c.token == token)
        return self._connection.execute(update(leaders).where(one).values(until=until)).rowcount == 1

    def until(self, name: str) -> float:
        """When the present term's lease ends; -inf before the first."""
        found = self._connection.scalar(select(leaders.c.until).where(leaders.c.name == name))
        return float("-inf") if found is None else float(found)

    def leads(self, name: str, token: int) -> bool:
        """Whether the term goes on; if so no other can begin before this transaction ends."""
        one = select(leaders.c.token).where(leaders.c.name == name).with_for_update(read=True, key_share=False)
        return self._connection.scalar(one) == token


class LeaderLock:
    """The advisory lock on a connection of its own.

    Args:
        url: address of the database.
    """

    def __init__(self, url: str) -> None:
        self._url = read_url(url)
        self._engine = create_engine(self._url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        self._connection: Connection | None = None

    def try_take(self) -> bool:
        """Take the lock if nobody holds it.

        Raises:
            UnreachableError: the database does not answer.
        """
        with translated(self._url):
            if self._connection is None:
                self._connection = self._engine.connect()
            try:
                return bool(self._connection.scalar(select(func.pg_try_advisory_lock(LEADER_LOCK))))
            except DBAPIError:
                self.free()
                raise

    def held(self) -> bool:
        """Whether the connection that holds the lock still lives."""
        if self._connection is None:
            return False
        try:
            self._connection.execute(text("select 1"))
        except DBAPIError:
            self.free()
            return False
        return True

    def oust(self) -> None:
        """End the connection that holds the lock: its process does not answer, and its lease is over."""
        holds = "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted"
        this = " and objsubid = 1 and (classid::bigint << 32) + objid::bigint = :key and pid <> pg_backend_pid()"
        here = " and database = (select oid from pg_database where datname = current_database())"
        with translated(self._url), self._engine.connect() as other:
            other.execute(text(holds + this + here), {"key": LEADER_LOCK})

    def free(self) -> None:
        """Let the lock go."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError, CanaryError):
                connection.invalidate()
                connection.close()
