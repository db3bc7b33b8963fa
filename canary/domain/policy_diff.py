"""What a changed policy changes: per field whether it is looser, stricter or neutral, and what becomes of a rollout under way.

The table is total: a field without a direction fails a test, and a change in it counts as looser. Nothing here applies anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from canary.domain.directions import DIRECTIONS, Direction, Rule
from canary.domain.modes import MODES, Mode
from canary.domain.policy import Policy, Stage
from canary.domain.traffic import Stratum


class Effect(StrEnum):
    """What a new policy does to a rollout that is under way."""

    UNCHANGED = "unchanged"
    KEEP = "keep"  # the stage and the evidence stay, the bake starts again
    GATHER = "gather"  # the stage stays, evidence and bake start again in the next attempt
    RESTART = "restart"  # back to shadow with the next attempt


@dataclass(frozen=True, slots=True)
class Change:
    """One field that says something else.

    Args:
        path: as the file writes it; stages go by their names.
        old, new: plain values; None where it is absent.
        direction: `looser`, `stricter` or `neutral`.
        evidence: evidence gathered under the old value says nothing about the new one.
    """

    path: str
    old: object
    new: object
    direction: Direction
    evidence: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """All changes between two policies of a route, and what applying the new one does.

    Args:
        effect: on a rollout that stands in a stage that both have; see `effect_at`.
    """

    changes: tuple[Change, ...]
    effect: Effect

    @property
    def looser(self) -> bool:
        """Whether a second person must agree."""
        return any(c.direction is Direction.LOOSER for c in self.changes)

    @property
    def evidence(self) -> bool:
        """Whether evidence starts again."""
        return any(c.evidence for c in self.changes)


def compare(old: Policy, new: Policy) -> Difference:
    """What the new policy changes.

    A stricter or neutral policy takes effect where the rollout stands; one that loosens what evidence is judged by, or turns on
    another subject, starts in the shadow.
    """
    before, after = leaves(old), leaves(new)
    changes = []
    both = {s.name for s in old.stages} & {s.name for s in new.stages}
    for path in dict.fromkeys((*before, *after)):
        if path.startswith("stages.") and path.removeprefix("stages.").rsplit(".", 1)[0] not in both:
            continue  # the list of stages itself says that one came or went
        a, b = before.get(path), after.get(path)
        if a != b:
            rule = rule_of(path)
            changes.append(Change(path, a, b, rule.between(a, b), rule.evidence))
    difference = Difference(tuple(changes), Effect.UNCHANGED)
    if not changes:
        return difference
    subject = any(c.path.startswith("subject.") for c in changes)
    if subject or (difference.evidence and difference.looser):
        return dataclasses.replace(difference, effect=Effect.RESTART)
    return dataclasses.replace(difference, effect=Effect.GATHER if difference.evidence else Effect.KEEP)


def effect_at(difference: Difference, old: Policy, new: Policy, stage: int) -> tuple[Effect, int]:
    """The effect on a rollout at a stage of the old policy, and its stage in the new one.

    A stage that the new policy does not have, or gives more traffic, is left for the shadow. In the shadow itself, evidence that
    starts again is a new attempt like any other.

    Args:
        stage: index into the old policy's stages.
    """
    if difference.effect in (Effect.UNCHANGED, Effect.RESTART):
        return difference.effect, stage if difference.effect is Effect.UNCHANGED else 0
    here = old.stages[stage]
    found = next((at for at, s in enumerate(new.stages) if s.name == here.name and s.weight <= here.weight), None)
    if found is None:
        return Effect.RESTART, 0
    if difference.effect is Effect.GATHER and found == 0:
        return Effect.RESTART, 0
    return difference.effect, found


def rule_of(path: str) -> Rule:
    """The rule of a field; stages share theirs, and what is not in the table counts as looser whatever it does."""
    if path.startswith("stages."):
        path = "stages.*." + path.rsplit(".", 1)[1] if path.count(".") > 1 else path
    elif path.startswith(("gates.modes.", "gates.strata.", "labels.")):
        path = path.rsplit(".", 1)[0] + ".*"
    return DIRECTIONS.get(path, Rule(Direction.ANY_LOOSER, evidence=True))


def leaves(policy: Policy) -> dict[str, object]:
    """A policy's fields by path, each a plain value."""
    found: dict[str, object] = {"stages": tuple(s.name for s in policy.stages)}
    for stage in policy.stages:
        found |= {f"stages.{stage.name}.{k}": v for k, v in _stage(stage).items()}
    found |= {f"gates.modes.{gate}": policy.gates.mode_of(gate).value for gate in MODES}
    watched = {m.stratum: m.mode for m in policy.gates.strata}
    found |= {f"gates.strata.{s.value}": watched.get(s.value, Mode.REQUIRED).value for s in Stratum}
    found |= {f"labels.{k}": v for k, v in policy.labels.items()}
    found["notify"] = tuple((t.webhook, t.events) for t in policy.notify)
    beside = ("stages", "labels", "notify", "content_hash", "gates.modes", "gates.strata")
    found |= {path: v for path, v in _plain("", policy).items() if path not in beside}
    return found


def _stage(stage: Stage) -> Mapping[str, object]:
    asked = stage.approval
    return {
        "weight": stage.weight,
        "bake_seconds": stage.bake_seconds,
        "live": stage.live,
        "live_waived": stage.live_waived,
        "approval": asked is not None,
        "approval_within": asked.within_seconds if asked else None,
        "approval_by_author": asked is None or asked.by_author,
    }


def _plain(path: str, value: object) -> dict[str, object]:
    """The fields of a dataclass and of those inside it."""
    found: dict[str, object] = {}
    for each in dataclasses.fields(value):  # type: ignore[arg-type]
        of, at = getattr(value, each.name), f"{path}{each.name}"
        found |= _plain(f"{at}.", of) if dataclasses.is_dataclass(of) else {at: of}
    return found
