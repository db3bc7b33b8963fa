"""Live observations: once per (route, observation id), in order of arrival.

A repeat is a no-op, never an error; which stage an observation belongs to is not decided here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, func, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert

from canary.domain.observations import Observation
from canary.domain.pairs import Arm
from canary.store.packing import moment, scrub
from canary.store.tables import observation_keys, observations

# Held to the end of the transaction, so that places become visible in their own order: a fold may then look only beyond the last
# one that it has seen.
OBSERVE_LOCK = 0x43414E4152590003
FIELDS = tuple(f.name for f in fields(Observation))
TEXTS = ("observation_id", "finish_reason", "error", "stage", "engine")


class Observations:
    """`ObservationStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add_many(self, observations_: Sequence[Observation], now: float) -> list[bool]:
        """Insert what is new by (route, observation id); True where it was new."""
        first: dict[bytes, int] = {}
        for at, observation in enumerate(observations_):
            first.setdefault(_key(observation.route, observation.observation_id), at)
        if not first:
            return []
        self._connection.execute(select(func.pg_advisory_xact_lock(OBSERVE_LOCK)))
        received_at = moment(now)
        keys = [{"key": key, "route": observations_[at].route, "received_at": received_at} for key, at in first.items()]
        # One statement, so that the places follow the order in which the batch lists the observations.
        statement = upsert(observation_keys).values(keys).on_conflict_do_nothing(index_elements=["key"])
        fresh = self._connection.execute(statement.returning(observation_keys.c.seq, observation_keys.c.key)).all()
        new = {first[bytes(key)]: seq for seq, key in fresh}
        rows = [{**_pack(observations_[at]), "seq": seq, "received_at": received_at} for at, seq in new.items()]
        if rows:
            self._connection.execute(insert(observations), rows)
        return [at in new for at in range(len(observations_))]

    def after(self, route: str, cursor: int, limit: int) -> list[tuple[int, Observation]]:
        """The route's observations beyond a place, in order of arrival."""
        keys, kept = observation_keys.c, observations.c
        beyond = (
            select(keys.seq, keys.received_at)
            .where(keys.route == route, keys.seq > cursor)
            .order_by(keys.seq)
            .limit(limit)
            .subquery()
        )
        # The key names the moment, hence the partition, so that one is read and not all.
        same = (kept.seq == beyond.c.seq) & (kept.received_at == beyond.c.received_at)
        statement = select(observations).join(beyond, same).order_by(kept.seq)
        return [(row["seq"], _unpack(row)) for row in self._connection.execute(statement).mappings()]

    def newest(self, route: str) -> int:
        """Place of the route's newest observation, 0 without one."""
        statement = select(func.max(observation_keys.c.seq)).where(observation_keys.c.route == route)
        return self._connection.scalars(statement).one() or 0

    def get(self, route: str, observation_id: str) -> Observation | None:
        """One observation by its id."""
        keys, kept = observation_keys.c, observations.c
        same = (kept.seq == keys.seq) & (kept.received_at == keys.received_at)
        statement = select(observations).join(observation_keys, same).where(keys.key == _key(route, observation_id))
        row = self._connection.execute(statement).mappings().first()
        return None if row is None else _unpack(row)


def _key(route: str, observation_id: str) -> bytes:
    """16 bytes that stand for (route, observation id)."""
    head, tail = (part.encode("utf-8", "surrogatepass") for part in (route, observation_id))
    return hashlib.blake2b(len(head).to_bytes(8, "little") + head + tail, digest_size=16).digest()


def _pack(observation: Observation) -> dict[str, Any]:
    row = {name: getattr(observation, name) for name in FIELDS}
    row["accepted_per_position"] = None if (found := observation.accepted_per_position) is None else list(found)
    return {**row, **{name: row[name] and scrub(row[name]) for name in TEXTS}, "arm": observation.arm.value}


def _unpack(row: Any) -> Observation:
    values = {name: row[name] for name in FIELDS}
    found = values["accepted_per_position"]
    return Observation(**{**values, "arm": Arm(row["arm"]), "accepted_per_position": None if found is None else tuple(found)})
