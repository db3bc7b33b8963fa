"""Mirrored prompts, what the mirror counted, and live observations, in dictionaries."""

from __future__ import annotations

from collections.abc import Sequence

from canary.domain.mirrored import MirrorCount, added_up
from canary.domain.observations import Observation
from canary.domain.traffic import Prompt
from canary.inmemory.state import Repository


class Prompts(Repository):
    def add_many(self, prompts: Sequence[Prompt], now: float) -> list[bool]:
        state, new = self.state, []
        for prompt in prompts:
            key = (prompt.source, prompt.request_id)
            new.append(key not in state.prompts)
            state.prompts.setdefault(key, prompt)
            state.arrived_at.setdefault(key, now)
        for route in {p.route for p in prompts}:
            came = tuple(p for p, is_new in zip(prompts, new, strict=True) if is_new and p.route == route)
            state.arrivals[route] = state.arrivals.get(route, ()) + came
        return new

    def count(self, route: str) -> int:
        return len(self.state.arrivals.get(route, ()))

    def since(self, route: str, at: float, most: int) -> int:
        found = self.state.arrivals.get(route, ())
        return min(most, sum(self.state.arrived_at[(p.source, p.request_id)] >= at for p in found))

    def recent(self, route: str, limit: int) -> list[Prompt]:
        return list(self.state.arrivals.get(route, ())[-limit:])

    def of_pair(self, pair_id: str) -> Prompt | None:
        lease = self.state.leases.get(pair_id)
        return None if lease is None else lease.claim.prompt


class Mirrored(Repository):
    def add(self, counts: Sequence[MirrorCount]) -> None:
        for window in {(c.route, c.rate) for c in counts}:
            known, new = self.state.mirrored.get(window, ()), (c for c in counts if (c.route, c.rate) == window)
            self.state.mirrored[window] = tuple(added_up((*known, *new)))

    def get(self, route: str, rate: float) -> list[MirrorCount]:
        return list(self.state.mirrored.get((route, rate), ()))


class Observations(Repository):
    def add_many(self, observations: Sequence[Observation], now: float) -> list[bool]:
        known, new = self.state.observations, []
        for observation in observations:
            key = (observation.route, observation.observation_id)
            new.append(key not in known)
            known.setdefault(key, (len(known) + 1, observation))
        return new

    def after(self, route: str, cursor: int, limit: int) -> list[tuple[int, Observation]]:
        found = [item for (of, _), item in self.state.observations.items() if of == route and item[0] > cursor]
        return found[:limit]

    def newest(self, route: str) -> int:
        return max((place for (of, _), (place, _) in self.state.observations.items() if of == route), default=0)

    def get(self, route: str, observation_id: str) -> Observation | None:
        found = self.state.observations.get((route, observation_id))
        return found and found[1]
