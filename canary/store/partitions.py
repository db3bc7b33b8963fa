"""Daily partitions of prompts, pairs and observations: made ahead, emptied of content, and dropped.

A row of a day that has none yet lies in the DEFAULT partition and moves when its day is made, so nothing waits for this.
"""

from __future__ import annotations

from datetime import date, timedelta

from sqlalchemy import Connection, func, select, text

from canary.store.packing import deflate
from canary.store.tables import PARTITIONED

PARTITION_LOCK = 0x43414E4152590002
BLANK = [f"{arm}_text = :empty, {arm}_token_ids = ''::bytea" for arm in ("baseline", "candidate")]
FULL = "octet_length(baseline_token_ids) > 0 or octet_length(candidate_token_ids) > 0"


def ensure_partitions(connection: Connection, today: date, days: int) -> list[str]:
    """Make the partitions of `today` and the `days` after it; returns the names of the new ones."""
    connection.execute(select(func.pg_advisory_xact_lock(PARTITION_LOCK)))
    made: list[str] = []
    for table, column in PARTITIONED.items():
        for day in (today + timedelta(days=n) for n in range(days + 1)):
            name = f"{table}_{day:%Y%m%d}"
            if connection.scalars(select(func.to_regclass(name))).one() is None:
                _make(connection, table, column, name, day)
                made.append(name)
    return made


def _make(connection: Connection, table: str, column: str, name: str, day: date) -> None:
    low, high = f"{day.isoformat()} 00:00:00+00", f"{(day + timedelta(days=1)).isoformat()} 00:00:00+00"
    connection.execute(text(f"create table {name} (like {table} including defaults including constraints)"))
    connection.execute(text(f"lock table {table}_default in access exclusive mode"))
    connection.execute(
        text(
            f"with moved as (delete from {table}_default where {column} >= '{low}' and {column} < '{high}' returning *)"
            f" insert into {name} select * from moved"
        )
    )
    connection.execute(text(f"alter table {table} attach partition {name} for values from ('{low}') to ('{high}')"))


def drop_days(connection: Connection, table: str, before: date) -> list[str]:
    """Drop a table's partitions of days before that one; returns their names."""
    connection.execute(select(func.pg_advisory_xact_lock(PARTITION_LOCK)))
    old = _days(connection, table, before)
    for name in old:
        connection.execute(text(f"drop table {name}"))
    return old


def blank_days(connection: Connection, before: date) -> int:
    """Empty the answers in pairs of days before that one, whose numbers stay; returns how many pairs."""
    emptied = 0
    for name in _days(connection, "pairs", before):
        statement = text(f"update {name} set {', '.join(BLANK)} where {FULL}")
        emptied += connection.execute(statement, {"empty": deflate(b"")}).rowcount
    return emptied


def _days(connection: Connection, table: str, before: date) -> list[str]:
    """Names of a table's daily partitions before a day; the default one is none of them."""
    parts = "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = cast(:t as regclass)"
    names = connection.scalars(text(parts), {"t": table}).all()
    return sorted(n for n in names if n.removeprefix(f"{table}_").isdigit() and n < f"{table}_{before:%Y%m%d}")
