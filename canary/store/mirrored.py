"""Counts of mirrored requests: added to, never set, and read by window (route and mirror rate)."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select, text

from canary.domain.mirrored import MirrorCount
from canary.store.tables import mirror_counts

TYPES = {
    "route": "text",
    "rate": "float8",
    "endpoint": "text",
    "stream": "bool",
    "length": "int8",
    "seen": "int8",
    "kept": "int8",
}
_COLUMNS = ", ".join(TYPES)

# The rows come in the order of their kinds, so that writers who meet at several of them never wait for each other in a circle.
ADD = text(
    f"insert into mirror_counts as known ({_COLUMNS}) select {_COLUMNS}"
    f" from unnest({', '.join(f'cast(:{name} as {kind}[])' for name, kind in TYPES.items())}) as more ({_COLUMNS})"
    " order by route, rate, endpoint, stream, length"
    " on conflict (route, rate, endpoint, stream, length)"
    " do update set seen = known.seen + excluded.seen, kept = known.kept + excluded.kept"
)


class Mirrored:
    """`MirroredStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, counts: Sequence[MirrorCount]) -> None:
        """Add to the counts of their kinds, in one statement."""
        if counts:
            self._connection.execute(ADD, {name: [getattr(c, name) for c in counts] for name in TYPES})

    def get(self, route: str, rate: float) -> list[MirrorCount]:
        """The route's counts under one mirror rate, by kind in a fixed order."""
        kind = mirror_counts.c
        found = self._connection.execute(select(mirror_counts).where(kind.route == route, kind.rate == rate)).mappings()
        return sorted(MirrorCount(**row) for row in found)
