"""Flags and the version of their snapshot, which rises with every write.

A snapshot is read in one statement, so it never mixes two versions. What SQL never looks at lies in `details`, as JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, select, true, update
from sqlalchemy.dialects.postgresql import insert

from canary.domain.flag import Flag, Snapshot
from canary.store.flag_tables import flag_versions, flags


class Flags:
    """`FlagStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, route: str) -> Flag | None:
        """One route's flag."""
        row = self._connection.execute(select(flags).where(flags.c.route == route)).mappings().first()
        return None if row is None else _flag(row)

    def put(self, flag: Flag) -> None:
        """Write the flag and raise the snapshot version; writers queue at the version."""
        self._connection.execute(update(flag_versions).values(version=flag_versions.c.version + 1))
        values = _row(flag)
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
        return Snapshot(rows[0]["version"], now, {row["route"]: _flag(row) for row in rows if row["route"] is not None})


def _row(flag: Flag) -> dict[str, object]:
    values = asdict(flag)
    details = {name: values.pop(name) for name in list(values) if name not in flags.c}
    return values | {"details": json.dumps(details, sort_keys=True)}


def _flag(row: Mapping[Any, Any]) -> Flag:
    values = {name: row[name] for name in flags.c.keys() if name not in ("route", "details")}  # noqa: SIM118, columns by name
    return Flag.from_dict(row["route"], values | json.loads(row["details"]))
