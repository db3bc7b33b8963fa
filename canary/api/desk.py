"""Where kills are taken and undone in one process: the board, what settles it, its peers, and what the clients hold.

A kill is answered from memory and disk; only an unkill waits for the store, which must know that it was a person.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass

from canary.api.flags import FlagCache
from canary.api.holders import Holders
from canary.api.peers import Peers
from canary.domain.errors import ConflictError, NotFoundError, UnreachableError
from canary.domain.flag import Flag
from canary.domain.kills import ALL, DRILL, SCOPE, KillOrder
from canary.domain.propagation import Propagation
from canary.domain.rollout import Rollout
from canary.flow import kill_drill, kills
from canary.flow.ports import Observer, Store
from canary.kills.board import KillBoard
from canary.kills.settler import Settler

SETTLE_SECONDS = 2.0  # how long an answer waits for the store while it seems to be well
LOOK_SECONDS = 1.0
ANSWERING = 32  # kills that may be answered at a time; each is taken before it waits for anything


@dataclass(frozen=True, slots=True)
class Taken:
    """A kill that was taken.

    Args:
        settled: whether the store has it too by now.
        kill_reason: what the flag says; an earlier kill's, where there was one.
    """

    order: KillOrder
    settled: bool
    kill_reason: str


class KillDesk:
    """One process's kill switch.

    Args:
        flags: the snapshot that is served; its board is the desk's.
        peers: base URLs of the other replicas.
        peer_token: the secret that all replicas share.
        clock: seconds since the epoch.

    Raises:
        UsageError: peers without a token.
    """

    def __init__(
        self,
        store: Store,
        observer: Observer,
        flags: FlagCache,
        *,
        peers: Sequence[str] = (),
        peer_token: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._flags = flags
        self._clock = clock
        self.board: KillBoard = flags.board
        self.settler = Settler(store, observer, self.board, flags, clock=clock)
        self.holders = Holders()
        self.peers = Peers(peers, peer_token, self.board, observer)
        # Of its own: the server's threads may all be waiting for a store that does not answer.
        self.threads = ThreadPoolExecutor(ANSWERING, thread_name_prefix="canary-kill")
        self._drilling = threading.Lock()
        self._drill_began = 0.0
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="canary-kill-look")

    def start(self) -> None:
        self.board.start()
        self.settler.start()
        self.peers.start()

    def close(self) -> None:
        self.peers.close()
        self.settler.close()
        self.board.close()
        for pool in (self.threads, self._looking):
            pool.shutdown(wait=False, cancel_futures=True)

    def kill(self, scope: str, reason: str, actor: str) -> Taken:
        """Take a kill of one route or of all (`*`).

        Raises:
            NotFoundError: the store, which is well, knows no such route.
            RequestError: a value is out of range.
        """
        reason, actor = kills.said("reason", reason), kills.said("actor", actor)
        well = self._flags.healthy
        if scope != ALL and well and self._flag(scope) is None and self._unknown(scope):
            known = ", ".join(sorted(self._routes())) or "none"
            raise NotFoundError(f"there is no route {scope!r} (known: {known})", where=f"routes/{scope[:200]}")
        order = self.board.kill(scope, reason, actor, above=self._kill_epoch())
        settled = self.settler.wait(order.order_id, SETTLE_SECONDS if well else 0.0)
        flag = self._flag(scope)
        return Taken(order, settled, flag.kill_reason if flag is not None else order.sentence)

    def unkill(self, route: str, reason: str, actor: str) -> Rollout:
        """Undo one route's kill; see `flow.kills.unkill`.

        Raises:
            ConflictError: the kill file still names the route, or it is not killed.
            NotFoundError: there is no such route.
            UnreachableError: the store does not answer: only there an unkill can be taken.
        """
        if not SCOPE.fullmatch(route):
            raise NotFoundError("no route has such a name", where="/route", remedy="See /api/v1/routes.")
        self._must_settle(route)
        rollout = kills.unkill(self._store, route, reason, actor, self._clock())
        self._flags.refresh()
        return rollout

    def unkill_all(self, reason: str, actor: str) -> list[Rollout]:
        """Undo the kill of all routes; see `flow.kills.unkill_all`.

        Raises:
            ConflictError: the kill file still names `*`, or there is no such kill.
            UnreachableError: the store does not answer.
        """
        self._must_settle(ALL)
        revived = kills.unkill_all(self._store, reason, actor, self._clock())
        self._flags.refresh()
        return revived

    def drill(self, actor: str, *, wait_seconds: float = kill_drill.WAIT_SECONDS) -> Propagation:
        """Run a kill drill; see `flow.kill_drill`.

        Raises:
            ConflictError: one is running here already.
            UnreachableError: the store does not answer, so that the drill took place and is not recorded.
        """
        actor = kills.said("actor", actor)
        if not self._drilling.acquire(blocking=False):
            raise ConflictError("a kill drill is running", where="kill/drill", remedy="Wait for its end.")
        try:
            return kill_drill.drill(self._store, self, actor, self._clock, time.sleep, wait_seconds=wait_seconds)
        finally:
            self._drilling.release()

    def drill_on(self, actor: str) -> KillOrder:
        """Kill the drill's flag; one that a drill left killed, when its process ended, is revived first."""
        self.drill_off(actor)
        self._drill_began = time.monotonic()
        return self.board.kill(DRILL, "a kill drill", actor, above=self._kill_epoch())

    def drill_off(self, actor: str) -> None:
        """Revive the drill's flag."""
        self.board.unkill(DRILL, "the kill drill is over", actor, above=self._kill_epoch())

    def connected(self) -> frozenset[str]:
        """Clients of this process and its peers that were heard of lately."""
        theirs = [peer.clients(0)[0] for peer in self.peers.all]
        return self.holders.connected().union(*theirs)

    def reached(self, order: KillOrder) -> Mapping[str, float]:
        """Seconds from the order to the word of each client that holds it."""
        found: dict[str, float] = {}
        for ask in (self.holders.reached, *(lambda epoch, peer=peer: peer.clients(epoch)[1] for peer in self.peers.all)):
            held = ask(order.epoch)
            passed = time.monotonic() - self._drill_began
            found |= {client: max(0.0, passed - seconds) for client, seconds in held.items()}
        return found

    def _must_settle(self, scope: str) -> None:
        """What is to be undone must be in the store first, and nothing here may kill it again at once."""
        if scope in self.board.named:
            remedy = "Take the line out of the kill file first."
            raise ConflictError("the kill file names it", where=f"routes/{scope}", remedy=remedy)
        if not self.settler.round():
            remedy = "Ask again when the database answers."
            raise UnreachableError("the kill is not in the database yet", where=f"routes/{scope}", remedy=remedy)

    def _flag(self, route: str) -> Flag | None:
        published = self._flags.published
        return None if published is None else published.snapshot.flags.get(route)

    def _routes(self) -> list[str]:
        published = self._flags.published
        return [] if published is None else [route for route in published.snapshot.flags if route != DRILL]

    def _kill_epoch(self) -> int:
        published = self._flags.published
        return 0 if published is None else published.snapshot.kill_epoch

    def _unknown(self, route: str) -> bool:
        """Whether a fresh look at the store still shows no such route; where the look takes long, the kill is taken unseen."""
        try:
            self._looking.submit(self._flags.refresh).result(LOOK_SECONDS)
        except Late:
            return False
        return self._flags.healthy and self._flag(route) is None
