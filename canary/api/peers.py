"""Kill orders between replicas: sent at once to every peer, sent again until it has them, and asked for every few seconds.

The exchange is a join of two sets, so a repeat, a detour or a late answer changes nothing.
"""

from __future__ import annotations

import hmac
import random
from collections.abc import Mapping, Sequence
from typing import Any

from canary.domain.errors import ForbiddenError, RequestError, UsageError
from canary.domain.kills import KillOrder, ends_first
from canary.flow.loop import Loop
from canary.flow.ports import Observer
from canary.kills.board import KillBoard
from canary.kills.replicas import TOKEN_HEADER, post

PATH = "/api/v1/peers/kills"
CLIENTS_PATH = "/api/v1/peers/clients"
CATCH_UP_SECONDS = 2.0
FIRST_PAUSE_SECONDS = 0.1
TIMEOUT_SECONDS = 2.0
JITTER = 0.2
AT_ONCE = 500  # orders in one request, which keeps it far below the largest body that is taken


class Peer:
    """One other replica, and the thread that keeps it in step."""

    def __init__(self, url: str, token: str, board: KillBoard, observer: Observer) -> None:
        self._base = url
        self._token = token
        self._board = board
        self._observer = observer
        self._theirs: frozenset[str] = frozenset()
        self._failures = 0
        self._loop = Loop("canary-peer", self._step, observer)
        board.listen(self._loop.wake)

    def start(self) -> None:
        """Start exchanging; a second call does nothing."""
        self._loop.start()

    def close(self) -> None:
        """Stop exchanging."""
        self._loop.close()

    def exchange(self) -> bool:
        """Send what the peer has not confirmed, learn what it knows beyond that; whether it answered."""
        known = self._board.known
        missing = sorted((o for o in known.orders.values() if o.order_id not in self._theirs), key=ends_first)[:AT_ONCE]
        body = {"orders": [order.to_dict() for order in missing], "digest": known.digest}
        try:
            answered = self._post(body)
            learnt = [KillOrder.from_dict(given) for given in answered["orders"]]
            same = answered["digest"] == body["digest"]
        except Exception as error:  # whatever a network or a foreign server does, this thread lives and tries again
            if self._failures == 0:
                self._observer.note("peer_unreachable", peer=self._base, error=type(error).__name__)
            self._failures += 1
            return False
        self._failures = 0
        # What it says now, not what it once confirmed: a peer may have lost its disk.
        self._theirs = frozenset(known.orders if same else (o.order_id for o in (*missing, *learnt)))
        self._board.join(learnt)
        return True

    def clients(self, kill_epoch: int) -> tuple[frozenset[str], Mapping[str, float]]:
        """The peer's clients, and of those that hold that kill epoch, for how many seconds; nothing where it does not answer."""
        try:
            found = self._post({"kill_epoch": kill_epoch}, CLIENTS_PATH)
            return frozenset(map(str, found["connected"])), {str(c): float(s) for c, s in found["reached"].items()}
        except Exception:  # a drill is not worth an error; the peer's clients are missing in its report
            return frozenset(), {}

    def _post(self, body: Mapping[str, Any], path: str = PATH) -> Any:
        return post(self._base + path, self._token, body, TIMEOUT_SECONDS)

    def _step(self) -> float:
        self.exchange()
        pause = CATCH_UP_SECONDS
        if self._failures:
            pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 10), CATCH_UP_SECONDS)
        elif not self._theirs.issuperset(self._board.known.orders):
            pause = 0.0
        return pause * random.uniform(1 - JITTER, 1 + JITTER)


class Peers:
    """All peers of one process.

    Args:
        urls: base URLs of the other replicas; its own may be among them.
        token: the secret that all of them share.

    Raises:
        UsageError: peers without a token.
    """

    def __init__(self, urls: Sequence[str], token: str | None, board: KillBoard, observer: Observer) -> None:
        if urls and not token:
            raise UsageError(
                "peers need a shared secret", where="CANARY_PEER_TOKEN", remedy="Set it to the same long random text everywhere."
            )
        self.token = token
        self.all = tuple(Peer(url, token or "", board, observer) for url in urls)

    def start(self) -> None:
        for peer in self.all:
            peer.start()

    def close(self) -> None:
        for peer in self.all:
            peer.close()


def answer(board: KillBoard, body: Any) -> dict[str, object]:
    """Take a peer's orders, and give it those that it did not send unless it knows the same.

    Raises:
        RequestError: the body is not an exchange.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get("orders"), list) or not isinstance(body.get("digest"), str):
        raise RequestError("not an exchange of kill orders", remedy="Let a Canary of the same version send it.")
    given = [KillOrder.from_dict(order) for order in body["orders"]]
    board.join(given)
    known = board.known
    sent = {order.order_id for order in given}
    rest = [order.to_dict() for order in sorted(known.orders.values()) if order.order_id not in sent]
    back = [] if known.digest == body["digest"] else rest
    return {"orders": back, "digest": known.digest}


def check_token(token: str | None, shown: str | None) -> None:
    """Refuse whoever is no peer.

    Raises:
        ForbiddenError: no token is set here, or it is another one.
    """
    if not token or shown is None or not hmac.compare_digest(token.encode(), shown.encode("utf-8", "replace")):
        raise ForbiddenError("not a peer's token", where=TOKEN_HEADER, remedy="Set CANARY_PEER_TOKEN alike everywhere.")
