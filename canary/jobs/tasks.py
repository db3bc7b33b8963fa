"""What each job does in a real process: the pieces of `flow` bound to one store, its settings and its clock."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from canary.config import Settings
from canary.domain.errors import CanaryError, ConflictError, UsageError
from canary.domain.kills import ALL
from canary.flow.notify import deliver
from canary.flow.ports import Observer, Store
from canary.flow.retention import Lifetimes, retain
from canary.flow.shadow_runs import open_due
from canary.flow.tools.jobs import Work, drills_due, expire_keys
from canary.jobs.webhooks import Webhooks
from canary.kills.replicas import ask_for_drill, read_peers
from canary.wiring import days_of, housekeeping, kill_guard

STOP_SECONDS = 30.0
LOOK_SECONDS = 0.2

Tick = Callable[[Store, str, float, Observer], object]
Obey = Callable[[], Collection[str]]  # settles the kills that are known; scopes of those that the store does not have yet


class Assessment:
    """Ticks every route in turn, kills first; one route's failure does not reach the others.

    Args:
        tick: `flow.walk.control.tick`, with its fence bound.
        stopping: asked before each route; the round ends there.
        obey: called before each round; routes whose kill the store does not take yet are left where they are.
    """

    def __init__(
        self,
        store: Store,
        observer: Observer,
        tick: Tick,
        clock: Callable[[], float],
        stopping: Callable[[], bool],
        obey: Obey = tuple,
    ) -> None:
        self._store, self._observer, self._tick, self._clock, self._stopping = store, observer, tick, clock, stopping
        self._obey = obey
        self._failing: set[str] = set()

    def __call__(self) -> str:
        held = self._obey()
        with self._store.transaction() as tx:
            routes = [rollout.route for rollout in tx.rollouts.list()]
        failed = 0
        left = [route for route in routes if route in held or ALL in held]
        for route in routes:
            if self._stopping():
                break
            if route in left:
                continue
            try:
                self._tick(self._store, route, self._clock(), self._observer)
            except Exception as error:  # the text of a foreign error may hold a row, so only its type is told
                failed += 1
                said = str(error) if isinstance(error, CanaryError) else type(error).__name__
                if route not in self._failing:
                    self._observer.note("control_failed", route=route, error=said)
                self._failing.add(route)
            else:
                self._failing.discard(route)
        unsettled = f", {len(left)} left alone: their kills are not settled" if left else ""
        return f"{len(routes)} routes, {failed} failed{unsettled}"


class Children:
    """Commands that jobs run beside this process; they end with it.

    Args:
        environment: a child's whole environment.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._stopping = threading.Event()

    def run(self, arguments: Sequence[str]) -> int:
        """Run `canary ARGUMENTS` to its end; its exit code.

        Raises:
            ConflictError: the process stops.
        """
        child = subprocess.Popen(
            [sys.executable, "-m", "canary.cli", *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        while True:
            try:
                return child.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                if self._stopping.is_set():
                    child.terminate()
                    try:
                        child.wait(STOP_SECONDS)
                    except subprocess.TimeoutExpired:
                        child.kill()
                        child.wait()
                    raise ConflictError("the scheduler stops", where="jobs", remedy="The next leader runs it again.") from None

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        self._stopping.set()


def work_of(
    store: Store,
    chosen: Settings,
    tick: Tick,
    observer: Observer,
    children: Children,
    *,
    obey: Obey | None = None,
    kill_drill: Callable[[], str] | None = None,
    clock: Callable[[], float] = time.time,
) -> dict[str, Work]:
    """What every job does.

    Args:
        tick: `flow.walk.control.tick`, with its fence bound.
        obey: settles the kills that this process knows of; None makes it obey the home's journal and kill file.
        kill_drill: runs one where clients are connected; None asks the API that the settings name, if they name one.
    """
    keep = housekeeping(store)
    settled = obey or kill_guard(store, chosen, observer).obey
    webhooks = Webhooks(chosen.webhooks, clock)
    lifetimes = Lifetimes(chosen.content_days, chosen.number_days)

    def drills() -> str:
        said = []
        for route, faults in drills_due(store, clock()):
            named = [part for fault in faults for part in ("--fault", fault)]
            code = children.run(["drill", route, *named, "--actor", "scheduler", "--json"])
            said.append(f"{route}: {len(faults)} faults, exit code {code}")
        return "; ".join(said) or "no drill is due"

    def delivery() -> str:
        done = deliver(store, webhooks, clock, stopping=lambda: children.stopping)
        return f"{done.sent} sent, {done.failed} to be sent again, {done.dead} given up"

    def partitions() -> str:
        keep()
        return "the coming week's partitions are there"

    work: dict[str, Work] = {
        "assessment": Assessment(store, observer, tick, clock, lambda: children.stopping, settled),
        "delivery": delivery,
        "shadow_runs": lambda: open_due(store, clock()),
        "partitions": partitions,
        "key_expiry": lambda: expire_keys(store, clock()),
        "retention": lambda: retain(store, days_of(store), lifetimes, clock()),
        "drills": drills,
    }
    drilling = kill_drill or remote_drill(chosen)
    return work if drilling is None else {**work, "kill_drill": drilling}


def remote_drill(chosen: Settings) -> Work | None:
    """A kill drill that an API runs over its clients and records; None where the settings name no API."""
    where = "CANARY_API_URL" if chosen.api_url else "CANARY_PEERS"
    urls = read_peers(chosen.api_url or chosen.peers, where)
    if not urls:
        return None

    def drill() -> str:
        if chosen.peer_token is None:
            raise UsageError(
                f"{where} needs the shared secret", where="CANARY_PEER_TOKEN", remedy="Set it to the same text everywhere."
            )
        return ask_for_drill(urls, chosen.peer_token.get_secret_value())

    return drill
