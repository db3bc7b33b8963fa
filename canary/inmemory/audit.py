"""The audit log in dictionaries: a hash chain per route, appended to and never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice

from canary.domain import chain
from canary.inmemory.state import Repository


class Audit(Repository):
    def append(self, route: str, kind: str, actor: str, body: Mapping[str, object], now: float) -> None:
        newest = next((event for r, event in reversed(self.state.audit.values()) if r == route), None)
        previous = chain.START if newest is None else json.loads(newest)["digest"]
        event = {"id": len(self.state.audit) + 1, "route": route, "kind": kind, "actor": actor, "body": body, "at": round(now, 6)}
        event |= {"previous": previous, "digest": chain.link(previous, route, kind, actor, body, round(now, 6))}
        self.state.audit[len(self.state.audit)] = (route, json.dumps(event))

    def page(
        self, routes: Sequence[str] | None, *, before: int | None, limit: int, kind: str | None = None
    ) -> list[dict[str, object]]:
        found = (json.loads(event) for r, event in reversed(self.state.audit.values()) if routes is None or r in routes)
        chosen = (e for e in found if kind in (None, e["kind"]) and (before is None or e["id"] < before))
        return list(islice(chosen, limit))

    def chain(self, route: str, *, after: int, limit: int) -> list[dict[str, object]]:
        found = (json.loads(event) for r, event in self.state.audit.values() if r == route)
        return list(islice((event for event in found if event["id"] > after), limit))

    def routes(self) -> list[str]:
        return sorted({route for route, _ in self.state.audit.values()})

    def list(self, route: str, limit: int = 100, *, kind: str | None = None) -> list[dict[str, object]]:
        links = ("previous", "digest")
        found = self.page([route], before=None, limit=limit, kind=kind)
        return [{name: value for name, value in event.items() if name not in links} for event in found]
