"""`canary worker`: the process that loads models and runs pairs; there may be many, the lease table is the only truth."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Collection
from typing import Annotated

import typer

from canary import telemetry, wiring
from canary.domain.errors import CanaryError, UsageError
from canary.domain.policy import Policy, Shadow, Subject
from canary.flow.attempt import locked_rollout, pinned_policy
from canary.flow.ports import Observer, ShadowEngine, Store
from canary.flow.walk.shadow import announce, shadow_once

IDLE_SECONDS = 0.5
RETRY_SECONDS = 2.0


class Engines:
    """One engine per subject and way to shadow it, opened when a route first needs it, dropped when none does any more."""

    def __init__(self, threads: int | None, observer: Observer) -> None:
        self._threads = threads
        self._observer = observer
        self._open: dict[tuple[Subject, Shadow], ShadowEngine] = {}
        self._pinned: dict[str, tuple[Subject, Shadow]] = {}

    def of(self, policy: Policy) -> ShadowEngine:
        """The engine of a route's pinned policy; the route's former one is dropped first, to make room."""
        key = (policy.subject, policy.shadow)
        self._pinned[policy.route] = key
        self._drop()
        if key not in self._open:
            opened = wiring.open_engine(policy, threads=self._threads)
            self._observer.note(
                "engine_ready", route=policy.route, milliseconds_by_batch_and_width=dict(opened.info.verify_costs)
            )
            self._open[key] = opened
        return self._open[key]

    def keep(self, routes: Collection[str]) -> None:
        """Drop the engines that none of these routes pins."""
        self._pinned = {route: key for route, key in self._pinned.items() if route in routes}
        self._drop()

    def _drop(self) -> None:
        pinned = set(self._pinned.values())
        self._open = {key: engine for key, engine in self._open.items() if key in pinned}


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
    seen: set[str] = set()
    while True:
        ran = 0
        for route in _routes(store, engines, seen, observer):
            if (only and route not in only) or time.monotonic() < resting.get(route, 0.0):
                continue
            try:
                ran += _turn(store, engines, route, name, announced, observer)
            except CanaryError as error:
                if isinstance(error, UsageError) and len(set(only or seen)) == 1:
                    raise
                # One route's broken model, another engine on it or a database that is away must not stop the others.
                observer.note("route_failed", route=route, code=error.code, detail=str(error), again_in_seconds=RETRY_SECONDS)
                resting[route] = time.monotonic() + RETRY_SECONDS
        if not ran:
            time.sleep(IDLE_SECONDS)


def _routes(store: Store, engines: Engines, seen: set[str], observer: Observer) -> list[str]:
    """Routes that want shadow pairs, with only their engines kept; none while the database is away.

    Args:
        seen: takes up every route that there is, at work or not.
    """
    try:
        with store.transaction() as tx:
            rollouts = tx.rollouts.list()
    except CanaryError as error:
        observer.note("database_away", code=error.code, detail=str(error))
        time.sleep(RETRY_SECONDS)
        return []
    runnable = [r.route for r in rollouts if r.wants_shadow]
    seen.update(r.route for r in rollouts)
    engines.keep(runnable)
    return runnable


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
    pinned, engine = rollout.policy_hash, engines.of(policy)
    if announced.get(route) != (engine.info.fingerprint, rollout.epoch, rollout.attempt):
        rollout = announce(store, route, engine.info, time.time(), policy_hash=pinned)
        announced[route] = (engine.info.fingerprint, rollout.epoch, rollout.attempt)
    return shadow_once(store, route, engine, worker=name, clock=time.time, observer=observer, policy_hash=pinned)
