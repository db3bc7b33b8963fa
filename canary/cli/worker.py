"""`canary worker`: the process that loads models and runs pairs; there may be many, the lease table is the only truth."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Annotated

import typer

from canary import telemetry, wiring
from canary.domain.errors import CanaryError, UsageError
from canary.domain.policy import Policy
from canary.flow.attempt import locked_rollout, pinned_policy
from canary.flow.ports import Observer, ShadowEngine, Store
from canary.flow.walk.shadow import announce, runnable_routes, shadow_once

IDLE_SECONDS = 0.5
RETRY_SECONDS = 2.0


class Engines:
    """One engine per subject, opened when a route first needs it."""

    def __init__(self, threads: int | None, observer: Observer) -> None:
        self._threads = threads
        self._observer = observer
        self._open: dict[str, ShadowEngine] = {}

    def of(self, policy: Policy) -> ShadowEngine:
        if policy.content_hash not in self._open:
            opened = wiring.open_engine(policy, threads=self._threads)
            self._observer.note(
                "engine_ready", route=policy.route, milliseconds_by_batch_and_width=dict(opened.info.verify_costs)
            )
            self._open[policy.content_hash] = opened
        return self._open[policy.content_hash]


def worker(
    route: Annotated[list[str] | None, typer.Option(help="Only these routes; repeat for several. Default: all.")] = None,
    threads: Annotated[int | None, typer.Option(help="Torch threads. Default: torch's own choice.")] = None,
    log: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Claim mirrored prompts, run baseline and candidate, store the pairs.

    Stops cleanly on Ctrl-C or SIGTERM: leases in hand are given back. A killed worker's leases run out and are claimed again,
    with the same ordinals and the same random draws.
    """
    telemetry.configure(log)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    observer = telemetry.LogObserver()
    name = f"{socket.gethostname()}:{os.getpid()}"
    try:
        with wiring.open_store() as store:
            _loop(store, Engines(threads, observer), route, name, observer)
    except KeyboardInterrupt:
        observer.note("worker_stopped", worker=name)


def _loop(store: Store, engines: Engines, only: list[str] | None, name: str, observer: Observer) -> None:
    announced: dict[str, tuple[str, str, int]] = {}
    resting: dict[str, float] = {}
    while True:
        ran = 0
        routes = [r for r in _routes(store, observer) if not only or r in only]
        for route in routes:
            if time.monotonic() < resting.get(route, 0.0):
                continue
            try:
                ran += _turn(store, engines, route, name, announced, observer)
            except CanaryError as error:
                if isinstance(error, UsageError) and len(routes) == 1:
                    raise
                # One route's broken model or a database that is away must not stop the others.
                observer.note("route_failed", route=route, code=error.code, detail=str(error), again_in_seconds=RETRY_SECONDS)
                resting[route] = time.monotonic() + RETRY_SECONDS
        if not ran:
            time.sleep(IDLE_SECONDS)


def _routes(store: Store, observer: Observer) -> list[str]:
    """Routes that want shadow pairs; none while the database is away."""
    try:
        with store.transaction() as tx:
            return runnable_routes(tx)
    except CanaryError as error:
        observer.note("database_away", code=error.code, detail=str(error))
        time.sleep(RETRY_SECONDS)
        return []


def _turn(
    store: Store,
    engines: Engines,
    route: str,
    name: str,
    announced: dict[str, tuple[str, str, int]],
    observer: Observer,
) -> int:
    """One batch of one route, after telling its rollout which engine runs it."""
    with store.transaction() as tx:
        rollout = locked_rollout(tx, route)
        policy = pinned_policy(tx, rollout)
    engine = engines.of(policy)
    if announced.get(route) != (engine.info.fingerprint, rollout.epoch, rollout.attempt):
        rollout = announce(store, route, engine.info, time.time())
        announced[route] = (engine.info.fingerprint, rollout.epoch, rollout.attempt)
    return shadow_once(store, route, engine, worker=name, clock=time.time, observer=observer)
