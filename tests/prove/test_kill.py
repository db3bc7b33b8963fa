"""Kills reach every client with Postgres stopped and then killed, and no scheduler; how fast is for `tests.bench.kill` to say.

A3.19: two replicas, 200 clients over both, half by event stream and half by poll, 50 kills sent to one replica.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prove.kill_figures import run

CLIENTS, KILLS = 200, 50


def test_a_kill_reaches_every_client_with_postgres_stopped_and_killed(tmp_path: Path) -> None:
    """A3.19, reduced."""
    found = run(tmp_path, clients=12, kills=4, first=(0,), then=(1,))
    assert {name: found[name].acknowledged for name in ("stream", "poll")} == {"stream": 24, "poll": 24}


@pytest.mark.prove
@pytest.mark.timeout(1800)
def test_fifty_kills_reach_two_hundred_clients(tmp_path: Path) -> None:
    found = run(tmp_path, clients=CLIENTS, kills=KILLS, first=(0, 1), then=(0, 1))
    assert {name: found[name].acknowledged for name in ("stream", "poll")} == dict.fromkeys(
        ("stream", "poll"), CLIENTS * KILLS // 2
    )
