"""What one run of the kill world showed, counted and timed; the counts are for a test, the times for a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from canary.domain.propagation import Propagation
from tests.prove.kill_clients import Client
from tests.prove.kill_world import World, after_restarts, propagation

BOUNDS = {"stream": 1.0, "poll": 2.0}  # seconds after the acknowledgement


def run(home: Path, *, clients: int, kills: int, first: tuple[int, ...], then: tuple[int, ...]) -> Mapping[str, Propagation]:
    """Run it all and check whatever is counted.

    Args:
        first, then: numbers of the replicas that are started again before and after Postgres.

    Returns:
        Seconds from the request to each client's first baseline, of `stream` and `poll`; and of `late` those clients that still
        resolved to the candidate after the acknowledgement plus the bound.
    """
    world, crowd = propagation(home, clients=clients, kills=kills)
    try:
        by = {"stream": [c for c in crowd.clients if c.streams], "poll": [c for c in crowd.clients if not c.streams]}
        assert {name: len(found) for name, found in by.items()} == {"stream": clients // 2, "poll": clients // 2}
        assert crowd.all(lambda c: set(c.off_at) == set(world.routes)), "every client saw every kill"
        assert crowd.all(lambda c: not c.back), "and none of them came back"
        served, events, killed = after_restarts(world, first, then)
        everything = set(world.routes)
        assert served == [everything] * len(first + then), "after a start without Postgres and after one of everything"
        assert killed == everything
        assert events == dict.fromkeys(world.routes, 1), "one audit event per kill"
        return {name: _after(world.asked_at, found) for name, found in by.items()} | {"late": _late(world, by)}
    finally:
        world.end()


def _after(moments: Mapping[str, float], clients: list[Client], beyond: float = 0.0) -> Propagation:
    passed = {f"{n} {route}": c.off_at[route] - at for n, c in enumerate(clients) for route, at in moments.items()}
    found = {name: seconds for name, seconds in passed.items() if seconds > beyond}
    return Propagation.of(found, found)


def _late(world: World, by: Mapping[str, list[Client]]) -> Propagation:
    late = [_after(world.acknowledged_at, clients, BOUNDS[name]) for name, clients in by.items()]
    seconds = {f"{n} {m}": s for n, found in enumerate(late) for m, s in enumerate(found.seconds)}
    return Propagation.of(seconds, seconds)
