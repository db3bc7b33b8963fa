"""Builders of rollouts, policies and evidence; what a test leaves out is healthy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from canary.domain.decide import Decision, decide
from canary.domain.evidence import Evidence, GateEvidence, GateRole, Source, Verdict
from canary.domain.facts import CHANGE_GATE
from canary.domain.policy import Drafter, Limits, Policy, Stage, Subject
from canary.domain.rollout import Rollout, State

NOW = 1_000_000.0
ROLES = {
    "losslessness": GateRole.SAFETY,
    "errors": GateRole.SAFETY,
    "acceptance": GateRole.ECONOMY,
    "speed": GateRole.ECONOMY,
    "bank_certificate": GateRole.EQUIVALENCE,
    "row_gate": GateRole.EQUIVALENCE,
    "control": GateRole.HARNESS,
    "baseline": GateRole.HARNESS,
    "sample_ratio": GateRole.HARNESS,
}
POLICY = Policy(
    route="math",
    subject=Subject("own", "target", Drafter("ngram", 4), "float32"),
    stages=(
        Stage("shadow", 0),
        Stage("canary-5", 500, bake_seconds=100, live_waived="no users"),
        Stage("canary-60", 6000, bake_seconds=100, live_waived="no users"),
        Stage("full", 10_000),
    ),
    limits=Limits(max_hold_seconds=10_000, no_data_seconds=2000, fresh_seconds=500, max_requests=900, cooldown_seconds=50),
    content_hash="hash",
)
PLACES: Mapping[str, tuple[State, int]] = {
    "pending": (State.PENDING, 0),
    "shadow": (State.SHADOW, 0),
    "canary-5": (State.CANARY, 1),
    "canary-60": (State.CANARY, 2),
    "full": (State.FULL, 3),
    "held at shadow": (State.HELD, 0),
    "held at canary-5": (State.HELD, 1),
    "held at canary-60": (State.HELD, 2),
    "held at full": (State.HELD, 3),
    "rolled_back": (State.ROLLED_BACK, 1),
    "archived": (State.ARCHIVED, 0),
}


def gate(name: str, verdict: str = "pass", **more: Any) -> GateEvidence:
    """One gate; `live speed` is the gate `speed` on live traffic."""
    plain = name.removeprefix("live ")
    source = Source.SHADOW if plain == name else Source.LIVE
    role = ROLES.get(plain, GateRole.SAFETY if plain == CHANGE_GATE else None)
    assert role is not None
    return GateEvidence(plain, role, Verdict(verdict), more.pop("reason", verdict), "", source=source, n=100, **more)


def evidence(gates: Mapping[str, Any] | None = None, **changes: Any) -> Evidence:
    """All gates of `ROLES` passing but for the given ones: a verdict, keyword arguments, or None to leave the gate out."""
    merged: dict[str, Any] = dict.fromkeys(ROLES, "pass") | dict(gates or {})
    made = [gate(n, **(g if isinstance(g, dict) else {"verdict": g})) for n, g in merged.items() if g is not None]
    found = Evidence("math", "epoch", 1, 200, 200, 0, tuple(made), "epoch", "epoch", NOW, NOW)
    return replace(found, **changes)


def rollout(place: str = "shadow", **changes: Any) -> Rollout:
    """A rollout that entered its place 30 s ago."""
    state, stage = PLACES[place]
    made = Rollout("math", "hash", state, stage, "epoch", 1, entered_at=NOW - 30, assessed_at=NOW - 10, reason="given")
    return replace(made, **changes)


@dataclass(frozen=True)
class Situation:
    """A situation of the truth table; `none` is no evidence."""

    gates: Mapping[str, Any] = field(default_factory=dict)
    rollout: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    manual_kill: str | None = None

    def over(self, other: Situation) -> Situation:
        """Both at once; where they differ, this one."""
        return Situation(
            gates={**other.gates, **self.gates},
            rollout={**other.rollout, **self.rollout},
            policy={**other.policy, **self.policy},
            evidence={**other.evidence, **self.evidence},
            manual_kill=self.manual_kill or other.manual_kill,
        )

    def decide(self, place: str) -> Decision:
        changes = dict(self.evidence)
        found = None if changes.pop("none", False) else evidence(self.gates, **changes)
        policy = replace(POLICY, **self.policy)
        return decide(rollout(place, **self.rollout), policy, found, NOW, manual_kill=self.manual_kill)
