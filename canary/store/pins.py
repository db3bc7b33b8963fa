"""Pinned units as a person ordered them; what of them counts now, the flag carries."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.postgresql import insert

from canary.domain.pins import Pin
from canary.store.flag_tables import pins
from canary.store.packing import scrub


class Pins:
    """`PinStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, route: str) -> list[Pin]:
        """A route's pins, by unit."""
        found = self._connection.execute(select(pins).where(pins.c.route == route)).mappings()
        # Sorted here: the database's collation is not ours.
        return sorted((Pin(**row) for row in found), key=lambda pin: pin.unit)

    def put(self, pin: Pin) -> None:
        """Pin the unit, whatever it was pinned to."""
        values = asdict(pin) | {"reason": scrub(pin.reason), "actor": scrub(pin.actor)}
        statement = insert(pins).values(values)
        self._connection.execute(statement.on_conflict_do_update(constraint=pins.primary_key, set_=values))

    def drop(self, route: str, unit: str) -> None:
        """Forget a unit's pin; none is fine."""
        self._connection.execute(delete(pins).where(pins.c.route == route, pins.c.unit == unit))
