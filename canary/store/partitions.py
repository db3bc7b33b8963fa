"""Daily partitions of prompts and pairs.

A row of a day that has none yet lies in the DEFAULT partition and moves when its day is made, so nothing waits for this.
"""

from __future__ import annotations

from datetime import date, timedelta

from sqlalchemy import Connection, func, select, text

from canary.store.tables import PARTITIONED

PARTITION_LOCK = 0x43414E4152590002


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
