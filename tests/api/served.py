"""A store with routes, and a real server over it, for the tests of listener, API and client."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from canary.cli.serve import background_server
from canary.config import Settings
from canary.domain.decide import Decision, Kind, Missing
from canary.domain.errors import UnreachableError
from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.flag import Flag
from canary.domain.policy import Drafter, Policy, Shadow, Stage, Subject
from canary.flow.ports import Store
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load_text

NOW = 1_700_000_000.0
SECRET = "tell-nobody-3f81"


class Away:
    """A store that can go away."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.away = False

    def transaction(self):  # type: ignore[no-untyped-def]
        if self.away:
            raise UnreachableError("the database does not answer")
        return self._inner.transaction()


class Clock:
    """Seconds that only a test moves."""

    now = 50.0

    def __call__(self) -> float:
        return self.now


class Notes:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, object]]] = []

    def note(self, event: str, **facts: object) -> None:
        self.seen.append((event, facts))


def policy_of(route: str, mirror_rate: float = 1.0) -> Policy:
    """A small legal policy."""
    return Policy(
        route=route,
        subject=Subject(engine="own", target="tiny", dtype="float32", drafter=Drafter("ngram", 4)),
        stages=(
            Stage("shadow", 0),
            Stage("canary-5", 500, live_waived="a test"),
            Stage("canary-10", 1000, live_waived="a test"),
            Stage("full", 10_000),
        ),
        shadow=Shadow(mirror_rate=mirror_rate),
    )


def add_route(store: Store, route: str, mirror_rate: float = 1.0, epoch: str = "epoch-1") -> None:
    """Apply a policy and announce an epoch."""
    text = dump(policy_of(route, mirror_rate))
    rollout = apply_policy(store, load_text(text, name=route), text, NOW)
    with store.transaction() as tx:
        tx.rollouts.put(replace(rollout, epoch=epoch, version=rollout.version + 1))
        tx.commit()


def set_weight(store: Store, route: str, weight: int) -> Flag:
    """Give the route's flag a weight."""
    with store.transaction() as tx:
        before = tx.flags.get(route)
        assert before is not None
        after = replace(before, weight=weight)
        tx.flags.put(after)
        tx.commit()
    return after


@contextmanager
def serving(store: Store, max_body: int = 64 * 1024) -> Iterator[str]:
    """The base URL of a real server on a free port of loopback."""
    with background_server(store, Settings(host="127.0.0.1", port=0, max_body_bytes=max_body), Notes()) as url:
        yield url


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


def call(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, method: str | None = None) -> Answer:
    """One request; an error status is an answer too."""
    request = urllib.request.Request(url, data=body, headers=dict(headers or {}), method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Answer(answer.status, dict(answer.headers.items()), answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, dict(error.headers.items()), error.read())


def post_json(url: str, value: object, headers: Mapping[str, str] | None = None) -> Answer:
    """POST one JSON value."""
    return call(url, json.dumps(value).encode(), {"content-type": "application/json", **(headers or {})})


def decide_now(
    store: Store,
    route: str,
    verdicts: tuple[str, ...] = ("pass", "inconclusive"),
    *,
    decided: tuple[int, str] | None = None,
    pairs: int = 40,
    at: float | None = None,
    newest_pair_at: float | None = None,
) -> None:
    """Put a decision with one gate per verdict beside the attempt's evidence and in the audit log, as the control loop does.

    Args:
        decided: row and reason; by default what the verdicts ask for.
        at: when it was decided, now by default; the newest pair is as old unless said otherwise.
    """
    names = ("speed", "bank_certificate")
    gates = [
        GateEvidence(
            gate=name,
            role=GateRole.ECONOMY if name == "speed" else GateRole.EQUIVALENCE,
            verdict=Verdict(verdict),
            reason="measured",
            sentence=f"{name} is {verdict}",
            value=1.5,
            low=1.25,
            high=math.inf,
            threshold=1.1,
            n=40,
            needed=120 if verdict == "inconclusive" else None,
        )
        for name, verdict in zip(names, verdicts, strict=False)
    ]
    missing = tuple(Missing(g.gate, g.verdict, g.reason, g.needed) for g in gates if g.verdict is not Verdict.PASS)
    row, reason = decided or ((8, "not_yet") if missing else (8, "baking"))
    sentence = "not yet: 120 more requests" if missing else "all gates pass"
    moment = time.time() if at is None else at
    decision = asdict(Decision(Kind.STAY, row, reason, sentence, missing=missing)) | {"at": moment}
    body = {"decision": decision, "gates": [asdict(g) for g in gates], "num_pairs": pairs, "num_failed": 0, "folded": pairs}
    with store.transaction() as tx:
        rollout = tx.rollouts.get(route)
        assert rollout is not None
        battery = {"newest_pair_at": moment if newest_pair_at is None else newest_pair_at}
        tx.evidence.put(route, rollout.epoch, rollout.attempt, {"engine": None, "battery": battery, "last": body})
        tx.audit.append(route, "decision", "policy", body, NOW)
        tx.commit()
