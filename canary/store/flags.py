"""Flags and the version of their snapshot, which rises with every write.

A snapshot is read in one statement, so it never mixes two versions.
"""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, select, true, update
from sqlalchemy.dialects.postgresql import insert

from canary.domain.flag import Flag, Snapshot
from canary.store.tables import flag_versions, flags


class Flags:
    """`FlagStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, route: str) -> Flag | None:
        """One route's flag."""
        row = self._connection.execute(select(flags).where(flags.c.route == route)).mappings().first()
        return None if row is None else Flag(**row)

    def put(self, flag: Flag) -> None:
        """Write the flag and raise the snapshot version; writers queue at the version."""
        self._connection.execute(update(flag_versions).values(version=flag_versions.c.version + 1))
        values = asdict(flag)
        statement = insert(flags).values(values)
        self._connection.execute(statement.on_conflict_do_update(constraint=flags.primary_key, set_=values))

    def snapshot(self, now: float) -> Snapshot:
        """All flags and the version that they belong to."""
        rows = (
            self._connection.execute(
                select(flag_versions.c.version, flags).select_from(flag_versions.outerjoin(flags, true())).order_by(flags.c.route)
            )
            .mappings()
            .all()
        )
        found = [{name: value for name, value in row.items() if name != "version"} for row in rows]
        return Snapshot(rows[0]["version"], now, {f["route"]: Flag(**f) for f in found if f["route"] is not None})
