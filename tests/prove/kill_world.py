"""Two API replicas as processes on one Postgres that is stopped and then killed, and clients over both (`kill_clients`).

Run as a program it is one replica: URL of the database, home, port, URLs of the peers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from canary.cli.serve import bind
from canary.store.embedded import EmbeddedPostgres
from canary.store.migrate import migrate
from canary.store.unit_of_work import PostgresStore
from tests.api.served import NOW, add_route, call, post_json, set_weight
from tests.prove.kill_clients import Crowd

TOKEN = "a shared secret of this test"
WAIT_SECONDS = 120.0
ROOT = Path(__file__).resolve().parents[2]


def eventually(condition: Callable[[], object], what: str, check: Callable[[], object] = bool) -> None:
    """Wait for something that must happen; the limit is only there so that a failure ends, and `check` so that it ends early."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        check()
        assert time.monotonic() < end, f"it never happened: {what}"
        time.sleep(0.01)


@dataclass
class World:
    """Everything of one run.

    Args:
        home: a private folder.
        routes: names of routes, all at full.
    """

    home: Path
    routes: tuple[str, ...]
    urls: tuple[str, ...] = ()
    replicas: list[subprocess.Popen[bytes]] = field(default_factory=list)
    asked_at: dict[str, float] = field(default_factory=dict)
    acknowledged_at: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Postgres, routes, and both replicas."""
        self.postgres = EmbeddedPostgres(self.home / "db")
        self.postgres.start()
        self.database = self.postgres.create_database("canary")
        migrate(self.database)
        store = PostgresStore(self.database)
        for route in self.routes:
            add_route(store, route)
            set_weight(store, route, 10_000)
        store.close()
        ports = []
        for _ in range(2):
            with bind("127.0.0.1", 0) as listening:
                ports.append(listening.getsockname()[1])
        self.urls = tuple(f"http://127.0.0.1:{port}" for port in ports)
        self.start_replicas(0, 1)

    def start_replicas(self, *numbers: int) -> None:
        for number in numbers:
            url = self.urls[number]
            command = [
                sys.executable,
                "-m",
                "tests.prove.kill_world",
                self.database,
                str(self.home / f"api{number}"),
                url.rpartition(":")[2],
            ]
            # Nobody reads what it says: a pipe would fill, and it would stand still.
            self.replicas.append(subprocess.Popen([*command, ",".join(self.urls)], cwd=ROOT, stdin=subprocess.DEVNULL))
        for url in (self.urls[number] for number in numbers):
            eventually(lambda url=url: self._answers(url), f"{url} answers", self._check_replicas)

    def _check_replicas(self) -> None:
        ended = [replica.returncode for replica in self.replicas if replica.poll() is not None]
        assert not ended, f"replicas ended by themselves: {ended}"

    def _answers(self, url: str) -> bool:
        try:
            return call(f"{url}/api/v1/flags/snapshot").status == 200
        except OSError:
            return False

    def stop_replicas(self) -> None:
        """As a machine that loses its power."""
        for replica in self.replicas:
            replica.kill()
            replica.wait(WAIT_SECONDS)
        self.replicas.clear()

    def postmaster(self) -> list[int]:
        """The server's processes."""
        pid = int((self.postgres.data / "postmaster.pid").read_text().splitlines()[0])
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def signal_postgres(self, number: signal.Signals) -> None:
        for pid in self.postmaster():
            os.kill(pid, number)

    def kill(self, route: str) -> None:
        """Through the first replica only."""
        self.asked_at[route] = time.monotonic()
        answer = post_json(f"{self.urls[0]}/api/v1/routes/{route}/kill", {"reason": "bar", "actor": "ada"})
        assert answer.status == 200, answer.body
        self.acknowledged_at[route] = time.monotonic()

    def killed(self, url: str) -> set[str]:
        flags = call(f"{url}/api/v1/flags/snapshot").json["flags"]
        assert isinstance(flags, dict)
        return {route for route, flag in flags.items() if flag["killed"]}

    def end(self) -> None:
        """Also after a failure, when Postgres may be stopped and would never hear that it shall end."""
        self.stop_replicas()
        with contextlib.suppress(OSError, ValueError, IndexError):
            self.signal_postgres(signal.SIGCONT)
        self.postgres.stop()


def propagation(home: Path, *, clients: int, kills: int) -> tuple[World, Crowd]:
    """Kill one route after another while Postgres first does not answer and then is gone.

    Returns:
        The world with its replicas still up and Postgres dead, and the clients, ended.
    """
    world = World(home, tuple(f"r{number:02}" for number in range(kills)))
    try:
        world.begin()
        crowd = Crowd(world.urls, clients)
        crowd.start()
        eventually(lambda: crowd.all(lambda c: c.held is not None and len(c.held.flags) == kills), "every client holds the flags")
        assert crowd.all(lambda c: not c.off_at)
        world.signal_postgres(signal.SIGSTOP)
        for number, route in enumerate(world.routes):
            if number == kills // 2:
                world.signal_postgres(signal.SIGKILL)
            world.kill(route)
            eventually(lambda route=route: crowd.all(lambda c: route in c.off_at), f"{route} is off everywhere")
        time.sleep(2.5)  # two polls more, in which nothing may come back
        crowd.stop()
    except BaseException:
        world.end()
        raise
    return world, crowd


def after_restarts(
    world: World, first: tuple[int, ...], then: tuple[int, ...]
) -> tuple[list[set[str]], dict[str, int], set[str]]:
    """Restart replicas with Postgres dead, then Postgres, then replicas again, the second one with its home lost.

    Args:
        first, then: numbers of the replicas that are started before and after Postgres.

    Returns:
        What each replica serves as killed after its start; audit events by route; and the routes that are killed in the store.
    """
    world.stop_replicas()
    world.start_replicas(*first)
    served = [world.killed(world.urls[number]) for number in first]
    world.postgres = EmbeddedPostgres(world.home / "db")
    world.postgres.start()
    for number in first:
        eventually(lambda number=number: call(f"{world.urls[number]}/api/v1/kills").json["pending"] == 0, "all is settled")
    world.stop_replicas()
    (world.home / "api1").rename(world.home / "lost")
    world.start_replicas(*then)
    served += [world.killed(world.urls[number]) for number in then]
    store = PostgresStore(world.database)
    with store.transaction() as tx:
        events = {route: len(tx.audit.list(route, kind="kill")) for route in world.routes}
        killed = {route for route, flag in tx.flags.snapshot(NOW).flags.items() if flag.killed}
    store.close()
    return served, events, killed


def serve(database: str, home: str, port: str, peers: str) -> None:
    """One replica: the API alone, without a scheduler, on a store that may be away."""
    import uvicorn

    from canary.api.app import create_app
    from canary.telemetry import SilentObserver

    app = create_app(PostgresStore(database), SilentObserver(), home=Path(home), peers=tuple(peers.split(",")), peer_token=TOKEN)
    with bind("127.0.0.1", int(port)) as listening:
        uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listening])


if __name__ == "__main__":
    serve(*sys.argv[1:])
