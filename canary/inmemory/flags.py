"""Flags, the version of their snapshot, pinned units and kill orders, in dictionaries."""

from __future__ import annotations

from collections.abc import Sequence

from canary.domain.flag import Flag, Snapshot
from canary.domain.kills import KillOrder
from canary.domain.pins import Pin
from canary.inmemory.state import Repository


class Flags(Repository):
    def get(self, route: str) -> Flag | None:
        return self.state.flags.get(route)

    def put(self, flag: Flag) -> None:
        self.state.flags[flag.route] = flag
        self.state.flag_version["version"] += 1

    def snapshot(self, now: float) -> Snapshot:
        return Snapshot(self.state.flag_version["version"], now, dict(sorted(self.state.flags.items())))


class Pins(Repository):
    def list(self, route: str) -> list[Pin]:
        return sorted((pin for (of, _), pin in self.state.pins.items() if of == route), key=lambda pin: pin.unit)

    def put(self, pin: Pin) -> None:
        self.state.pins[(pin.route, pin.unit)] = pin

    def drop(self, route: str, unit: str) -> None:
        self.state.pins.pop((route, unit), None)


class Kills(Repository):
    def add(self, order: KillOrder) -> bool:
        if order.order_id in self.state.kills:
            return False
        self.state.flag_version["version"] += 1
        self.state.kills[order.order_id] = (len(self.state.kills) + 1, order)
        return True

    def after(self, cursor: int) -> list[tuple[int, KillOrder]]:
        return [item for item in self.state.kills.values() if item[0] > cursor]

    def about(self, scopes: Sequence[str]) -> list[KillOrder]:
        return [order for _, order in self.state.kills.values() if order.scope in scopes]
