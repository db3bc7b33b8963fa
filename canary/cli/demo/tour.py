"""The demo's run: real requests to a real listener, a real worker process, and the walk's own control loop."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from canary.cli.background import die_with_parent
from canary.cli.demo.gateway import Gateway
from canary.cli.demo.report import RouteView
from canary.cli.demo.routes import DemoRoute
from canary.domain.errors import CanaryError
from canary.flow.ports import Observer, Store
from canary.flow.walk.control import tick

TICK_SECONDS = 2.0  # the worker wants both cores, and a batch takes it longer than this
SENDERS = 8
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the listener is on this machine


def send(base_url: str, route: DemoRoute, seed: int, report: Callable[[int], None]) -> int:
    """Mirror every prompt of a route over HTTP; a repeat of the same request id changes nothing.

    Returns:
        How many requests were accepted or already known.
    """

    def post(item: tuple[str, bytes]) -> None:
        request_id, body = item
        request = urllib.request.Request(
            f"{base_url}/mirror/v1/{route.name}/chat/completions",
            data=body,
            method="POST",
            headers={
                "content-type": "application/json",
                "x-request-id": f"{route.name}/{request_id}",
                "x-canary-source": f"demo-{seed}",
            },
        )
        with DIRECT.open(request, timeout=30):
            report(1)

    bodies = route.bodies()
    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(post, bodies))
    return len(bodies)


@contextmanager
def worker_process(database_url: str, home: Path, routes: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A `canary worker` on the demo's database; its notes go to `worker.log` in the demo's folder."""
    command = [sys.executable, "-m", "canary.cli", "worker"]
    for route in routes:
        command += ["--route", route]
    env = {**os.environ, "CANARY_DATABASE_URL": database_url, "HF_HUB_OFFLINE": "1"}
    with (home / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Eta:
    """Seconds left, from the pace of pairs so far."""

    def __init__(self, total: int, done: int) -> None:
        self._total, self._start, self._at = total, done, time.monotonic()

    def text(self, done: int) -> str:
        gained = done - self._start
        if gained < 1:
            return "? min"
        left = (time.monotonic() - self._at) / gained * max(0, self._total - done)
        return f"{int(left // 60)} min {int(left % 60)} s"


def drive(
    store: Store,
    views: dict[str, RouteView],
    gateway: Gateway,
    worker: subprocess.Popen[bytes],
    draw: Callable[[str], None],
    observer: Observer,
) -> None:
    """Tick every route until all are settled.

    Args:
        draw: called after each round with the time left in words.

    Raises:
        CanaryError: the worker ended early.
    """
    eta = Eta(sum(v.sent for v in views.values()), _done(store, views))
    while True:
        for route, view in views.items():
            if not view.settled:
                _refresh(store, route, view, observer)
            view.share = gateway.traffic[route].share
        draw(eta.text(sum(v.sent if v.settled else v.folded for v in views.values())))
        if all(view.settled for view in views.values()):
            return
        if worker.poll() is not None:
            raise CanaryError(
                f"the worker ended with exit code {worker.returncode}",
                remedy="Its last lines are in worker.log in the demo's folder.",
            )
        time.sleep(TICK_SECONDS)


def _refresh(store: Store, route: str, view: RouteView, observer: Observer) -> None:
    view.rollout, view.decision, view.evidence = tick(store, route, time.time(), observer)
    with store.transaction() as tx:
        flag = tx.flags.get(route)
        view.running = tx.claims.open_count(route, view.rollout.epoch, view.rollout.attempt)
    view.weight = 0 if flag is None or flag.killed else flag.weight


def _done(store: Store, views: dict[str, RouteView]) -> int:
    done = 0
    with store.transaction() as tx:
        for route in views:
            rollout = tx.rollouts.get(route)
            if rollout is not None:
                done += len(tx.pairs.ids(route, rollout.epoch, rollout.attempt))
    return done
