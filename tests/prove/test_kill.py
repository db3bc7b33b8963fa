"""How fast a kill reaches clients with Postgres stopped and then killed, and no scheduler (`-m prove -s` prints the figures).

A3.19: two replicas, 200 clients over both, half by event stream and half by poll, 50 kills sent to one replica.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from canary.domain.kills import Propagation
from tests.prove.kill_clients import Client
from tests.prove.kill_world import World, after_restarts, propagation

STREAM_P99, POLL_P99 = 1.0, 2.0  # seconds
CLIENTS, KILLS = 200, 50


def figures(world: World, clients: list[Client]) -> Propagation:
    """Seconds from the request to each client's first baseline."""
    found = {f"{n} {route}": c.off_at[route] - world.asked_at[route] for n, c in enumerate(clients) for route in world.routes}
    return Propagation.of(found, found)


def check(home: Path, *, clients: int, kills: int, first: tuple[int, ...], then: tuple[int, ...]) -> dict[str, Propagation]:
    """Run it all; whatever is counted is checked here, and the times are given back."""
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
        return {name: figures(world, found) for name, found in by.items()} | {"late": _late(world, by)}
    finally:
        world.end()


def _late(world: World, by: dict[str, list[Client]]) -> Propagation:
    """Resolves to the candidate after the acknowledgement plus the bound: clients that were later than that."""
    bounds = {"stream": STREAM_P99, "poll": POLL_P99}
    late = {
        f"{name} {n} {route}": client.off_at[route] - world.acknowledged_at[route]
        for name, clients in by.items()
        for n, client in enumerate(clients)
        for route in world.routes
        if client.off_at[route] > world.acknowledged_at[route] + bounds[name]
    }
    return Propagation.of(late, late)


def test_a_kill_reaches_every_client_with_postgres_stopped_and_killed(tmp_path: Path) -> None:
    """A3.19, reduced: what is counted, not how fast it was."""
    check(tmp_path, clients=12, kills=4, first=(0,), then=(1,))


@pytest.mark.prove
@pytest.mark.timeout(1800)
def test_propagation_of_fifty_kills_to_two_hundred_clients(tmp_path: Path) -> None:
    found = check(tmp_path, clients=CLIENTS, kills=KILLS, first=(0, 1), then=(0, 1))
    late = found.pop("late")
    for name, times in found.items():
        print(f"\n{name}: {json.dumps({k: v for k, v in times.to_dict().items() if k != 'missed'})}")
    print(f"later than the acknowledgement plus the bound: {late.acknowledged} of {CLIENTS * KILLS}")
    assert (found["stream"].quantile(0.99) or 99) < STREAM_P99
    assert (found["poll"].quantile(0.99) or 99) < POLL_P99
    assert late.acknowledged == 0
