"""Which way a policy changed: every field has a direction, and what cannot be told counts as looser."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from canary.domain.directions import DIRECTIONS, Direction, Rule
from canary.domain.live_policy import Structured
from canary.domain.match import Match
from canary.domain.modes import MODES, GateMode, Mode, StratumMode
from canary.domain.policy import Approval, Gates, Limits, NotifyTarget, Policy, Shadow, Stage
from canary.domain.policy_diff import Effect, compare, effect_at, leaves, rule_of
from canary.domain.shadow_run import ShadowSchedule
from tests.domain.situations import POLICY

FULL = replace(
    POLICY,
    structured=Structured("json"),
    shadow=Shadow(schedule=ShadowSchedule("0 3 * * *")),
    labels={"team": "x"},
    stages=tuple(replace(s, approval=Approval() if s.weight else None) for s in POLICY.stages),
)


def test_the_table_is_total() -> None:
    named = {path for path in leaves(FULL) if rule_of(path) == Rule(Direction.ANY_LOOSER, evidence=True)}
    deliberate = {
        "route",
        "match.stream",
        "gates.alpha",
        "gates.min_speed_tokens",
        "gates.speed_concurrency",
        "gates.control_limit",
    }
    assert named == deliberate
    for of in (Gates, Limits, Shadow, Match):
        name = of.__name__.lower()
        for field in dataclasses.fields(of):
            assert f"{name}.{field.name}" in DIRECTIONS or f"{name}.{field.name}.*" in DIRECTIONS, field.name
    for field in dataclasses.fields(Policy):
        assert field.name == "content_hash" or any(p.split(".")[0] == field.name for p in DIRECTIONS), field.name
    for field in dataclasses.fields(Stage):
        assert field.name == "name" or f"stages.*.{field.name}" in DIRECTIONS, field.name


def test_every_rule_is_about_a_field_that_there_is() -> None:
    there = {*leaves(FULL), *leaves(POLICY), "structured"}
    for path in DIRECTIONS:
        head, _, tail = path.partition("*")
        assert any(p == path or ((tail or head != path) and p.startswith(head) and p.endswith(tail)) for p in there), path


def with_(section: str, **changes: Any) -> Policy:
    return replace(POLICY, **{section: replace(getattr(POLICY, section), **changes)})


def staged(at: int, **changes: Any) -> Policy:
    stages = list(POLICY.stages)
    stages[at] = replace(stages[at], **changes)
    return replace(POLICY, stages=tuple(stages))


LOOSER = {
    "margin": with_("gates", margin=0.05),
    "acceptance": with_("gates", acceptance_floor=0.1),
    "alpha up": with_("gates", alpha=0.05),
    "alpha down": with_("gates", alpha=0.001),
    "mode": with_("gates", modes=(GateMode("ttft", Mode.OBSERVE, "why"),)),
    "fresh": with_("limits", fresh_seconds=5000),
    "cooldown": with_("limits", cooldown_seconds=1),
    "attempts": with_("limits", max_attempts=50),
    "controls": with_("shadow", control_rate=0.0),
    "bake": staged(1, bake_seconds=1),
    "weight": staged(1, weight=900),
    "drift": replace(POLICY, on_drift="keep"),
    "inside": replace(POLICY, inside_margin="hold"),
    "stale": replace(POLICY, max_stale_seconds=600),
    "a stage less": replace(POLICY, stages=(*POLICY.stages[:2], POLICY.stages[3])),
    "economy": replace(POLICY, economy="carry"),
}


@pytest.mark.parametrize("case", LOOSER)
def test_looser_one_way_is_stricter_the_other(case: str) -> None:
    assert compare(POLICY, LOOSER[case]).looser
    back = compare(LOOSER[case], POLICY)
    assert back.looser == case.startswith("alpha")


def test_sets_and_absences() -> None:
    asked = replace(POLICY, stages=tuple(replace(s, approval=Approval(60) if s.name == "full" else None) for s in POLICY.stages))
    assert not compare(POLICY, asked).looser
    assert compare(asked, POLICY).looser
    by_author = replace(POLICY, stages=(*asked.stages[:-1], replace(asked.stages[-1], approval=Approval(60, by_author=True))))
    assert compare(asked, by_author).looser
    narrow = replace(POLICY, match=Match(strata=("greedy",)))
    assert not compare(POLICY, narrow).looser
    assert compare(narrow, POLICY).looser
    assert compare(narrow, replace(POLICY, match=Match(strata=("greedy", "sampled")))).looser
    watched = replace(narrow, gates=replace(POLICY.gates, strata=(StratumMode("sampled", Mode.OBSERVE, "why"),)))
    assert compare(narrow, watched).looser
    json = replace(POLICY, structured=Structured("json"))
    assert not compare(POLICY, json).looser
    assert compare(json, POLICY).looser
    assert compare(json, replace(POLICY, structured=Structured("tools"))).looser


def test_labels_and_notifications_are_neutral_and_the_subject_is_another_thing() -> None:
    for new in (replace(POLICY, labels={"a": "b"}), replace(POLICY, notify=(NotifyTarget("oncall"),))):
        found = compare(POLICY, new)
        assert (found.looser, found.effect, [c.direction for c in found.changes]) == (False, Effect.KEEP, [Direction.NEUTRAL])
    other = compare(POLICY, replace(POLICY, subject=replace(POLICY.subject, target="another")))
    assert (other.looser, other.effect) == (False, Effect.RESTART)
    assert compare(POLICY, POLICY).effect is Effect.UNCHANGED


def test_a3_15_what_becomes_of_a_rollout_under_way() -> None:
    def effect(new: Policy, stage: int) -> tuple[Effect, int]:
        return effect_at(compare(POLICY, new), POLICY, new, stage)

    stricter = with_("gates", margin=0.001)
    assert [effect(stricter, s) for s in range(4)] == [
        (Effect.RESTART, 0), (Effect.GATHER, 1), (Effect.GATHER, 2), (Effect.GATHER, 3)
    ]  # fmt: skip
    assert effect(staged(1, bake_seconds=500), 1) == (Effect.KEEP, 1)
    assert effect(with_("gates", margin=0.05), 2) == (Effect.RESTART, 0)
    assert effect(staged(1, weight=900), 1) == (Effect.RESTART, 0), "more traffic than was agreed begins in the shadow"
    assert effect(staged(1, weight=100), 1) == (Effect.KEEP, 1)
    gone = LOOSER["a stage less"]
    assert effect(gone, 2) == (Effect.RESTART, 0)
    assert effect(gone, 3)[1] in (0, 2)


def test_modes_are_compared_as_they_count_not_as_they_are_written() -> None:
    spelt = with_("gates", modes=tuple(GateMode(g, m, "the same") for g, m in MODES.items()))
    assert compare(POLICY, spelt).changes == ()
