"""Pairs: immutable once stored, read back in ordinal order and never beyond the first gap.

A pair is stored once for its claim; storing it again changes nothing.
"""

from __future__ import annotations

from sqlalchemy import Connection, and_, insert, select, update

from canary.domain.errors import ConflictError
from canary.domain.pairs import Pair
from canary.domain.traffic import Stratum
from canary.flow.ports import FoldItem
from canary.store.claims import OPEN, of_attempt
from canary.store.packing import moment, pack_pair, unpack_pair
from canary.store.tables import claims, pairs

# The claim names the moment, hence the partition, so that one is read and not all.
STORED = and_(pairs.c.pair_id == claims.c.pair_id, pairs.c.stored_at == claims.c.stored_at)


class Pairs:
    """`PairStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, pair: Pair, now: float) -> None:
        """Store the pair of a claim; the first one stays.

        Raises:
            ConflictError: nobody ever claimed it.
        """
        marked = self._connection.execute(
            update(claims).where(claims.c.pair_id == pair.pair_id, claims.c.stored_at.is_(None)).values(stored_at=moment(now))
        )
        if marked.rowcount == 1:
            self._connection.execute(insert(pairs), pack_pair(pair, now))
        elif self._connection.execute(select(claims.c.pair_id).where(claims.c.pair_id == pair.pair_id)).first() is None:
            raise ConflictError("the pair was never claimed", where=f"pairs/{pair.pair_id}", remedy="Claim its prompt first.")

    def get(self, pair_id: str) -> Pair | None:
        """One pair, whether or not it is folded."""
        row = self._connection.execute(select(pairs).join(claims, STORED).where(claims.c.pair_id == pair_id)).mappings().first()
        return None if row is None else unpack_pair(row)

    def first(self, route: str, epoch: str, attempt: int, count: int) -> list[Pair | None] | None:
        """The first `count` ordinals (None for a tombstone), or None while any of them is open or unclaimed."""
        rows = (
            self._connection.execute(
                select(claims.c.state.label("claim_state"), pairs)
                .select_from(claims.outerjoin(pairs, STORED))
                .where(of_attempt(route, epoch, attempt), claims.c.ordinal < count)
                .order_by(claims.c.ordinal)
            )
            .mappings()
            .all()
        )
        if len(rows) < count or any(row["claim_state"] in OPEN for row in rows):
            return None
        return [unpack_pair(row) if row["claim_state"] == "paired" and row["pair_id"] is not None else None for row in rows]

    def page(self, route: str, epoch: str, attempt: int, *, after: int, limit: int) -> list[Pair]:
        """Stored pairs beyond an ordinal, in order."""
        statement = select(pairs).join(claims, STORED).where(of_attempt(route, epoch, attempt), claims.c.ordinal > after)
        rows = self._connection.execute(statement.order_by(claims.c.ordinal).limit(limit)).mappings()
        return [unpack_pair(row) for row in rows]

    def contiguous(self, route: str, epoch: str, attempt: int, *, after: int, limit: int) -> list[FoldItem]:
        """Finished ordinals from `after` on (how many are folded already), up to the first gap, in order."""
        rows = self._connection.execute(
            select(
                claims.c.ordinal,
                claims.c.state,
                claims.c.touched_at,
                claims.c.control,
                claims.c.stratum,
                claims.c.length,
                pairs.c.stored_at,
                pairs.c.increments,
                pairs.c.calibration_hash,
                pairs.c.error,
            )
            .select_from(claims.outerjoin(pairs, STORED))
            .where(of_attempt(route, epoch, attempt), claims.c.ordinal >= after)
            .order_by(claims.c.ordinal)
            .limit(limit)
        ).all()
        items: list[FoldItem] = []
        for expected, row in enumerate(rows, start=after):
            if row.ordinal != expected or row.state in OPEN:
                break
            kind = (row.control, None if row.stratum is None else Stratum(row.stratum), row.length)
            if row.state == "paired" and row.stored_at is not None:
                increments = row.increments if row.error is None else None
                items.append(FoldItem(row.ordinal, increments, row.calibration_hash, row.stored_at.timestamp(), *kind))
            else:
                items.append(FoldItem(row.ordinal, None, "", row.touched_at, *kind))
        return items

    def ids(self, route: str, epoch: str, attempt: int) -> list[str]:
        """Ids of the attempt's pairs in ordinal order; tombstones have none."""
        statement = select(claims.c.pair_id).where(of_attempt(route, epoch, attempt), claims.c.state == "paired")
        return list(self._connection.scalars(statement.order_by(claims.c.ordinal)))
