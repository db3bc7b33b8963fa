"""The decisions of one attempt as the audit log holds them; reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from canary.domain.evidence import GateEvidence, GateRole, Source, Verdict
from canary.flow.ports import Transaction
from canary.flow.tools.audits import events_of


@dataclass(frozen=True, slots=True)
class Recorded:
    """One decision.

    Args:
        at: seconds since the epoch.
        stage: index into the stages of the policy that decided.
        live: the live gates that it rested on.
    """

    at: float
    folded: int
    state: str
    stage: int
    kind: str
    reason: str
    sentence: str
    live: tuple[GateEvidence, ...]


def recorded(tx: Transaction, route: str, epoch: str, attempt: int) -> tuple[float | None, list[Recorded]]:
    """When the attempt began, None where the log does not say, and every decision that was made in it, oldest first."""
    began: float | None = None
    found: list[Recorded] = []
    at: tuple[object, object] = (None, None)
    for event in events_of(tx, route):
        body: Mapping[str, Any] = event["body"]
        if event["kind"] == "decision" and at == (epoch, attempt):
            found.append(_recorded(body))
        if isinstance(after := body.get("after"), Mapping):
            at = (after.get("epoch", at[0]), after.get("attempt", at[1]))
            if at == (epoch, attempt) and began is None:
                began = float(event["at"])
    return began, found


def gate_of(plain: Mapping[str, Any]) -> GateEvidence:
    """The inverse of `asdict` for one gate."""
    words = {"role": GateRole(plain["role"]), "verdict": Verdict(plain["verdict"]), "source": Source(plain["source"])}
    return GateEvidence(**{**plain, **words})


def _recorded(body: Mapping[str, Any]) -> Recorded:
    decision = body["decision"]
    live = tuple(gate_of(gate) for gate in body["gates"] if gate["source"] == Source.LIVE)
    state = "killed" if decision["kind"] == "kill" else str(body["state"])
    what = (str(decision["kind"]), str(decision["reason"]), str(decision["sentence"]))
    return Recorded(float(decision["at"]), int(body["folded"]), state, int(body["stage"]), *what, live)
