"""Readers of a policy's stages, limits, schedule, match rules and notifications: field tables that `policy_files` is made of."""

from __future__ import annotations

from typing import Any

import yaml

from canary.domain.live_policy import LIVE_GATES
from canary.domain.match import STREAMS, Match
from canary.domain.mirrored import ENDPOINTS
from canary.domain.shadow_run import ShadowSchedule
from canary.domain.stage_policy import EVENTS, Approval, Limits, NotifyTarget, Stage
from canary.domain.traffic import Stratum
from canary.flow.tools.yaml_nodes import At, entries
from canary.flow.tools.yaml_scalars import Duration, Flag, Number, OneOf, Text, Weight
from canary.flow.tools.yaml_sections import Field, Items, Section

WAIVED = "waived"
SLUG = r"[a-z0-9][a-z0-9._:-]*"


class _Live:
    """`waived`, or a list of live gates by name."""

    def read(self, node: yaml.Node, at: At) -> tuple[str, ...] | str:
        if isinstance(node, yaml.ScalarNode) and node.value == WAIVED:
            return WAIVED
        remedy = f"Write `live: waived` with a `why`, or a list of: {', '.join(LIVE_GATES)}."
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise at.error(node, "names no live gate", remedy)
        return Items(OneOf(LIVE_GATES)).read(node, at)

    def write(self, value: tuple[str, ...]) -> list[str]:
        return list(value)

    def schema(self) -> dict[str, Any]:
        names = {"type": "array", "minItems": 1, "items": {"enum": list(LIVE_GATES)}}
        return {"oneOf": [{"const": WAIVED}, names]}


class _StageSection(Section):
    """A stage: `live: waived` and `why` are two keys of one fact."""

    def read(self, node: yaml.Node, at: At) -> Stage:
        values = self.values(node, at)
        found = entries(node, at)
        waived = values.get("live") == WAIVED
        if waived and "why" not in found:
            raise at.child("live").error(
                found["live"][1], "is waived without a reason", "Add `why:` with the reason in a sentence."
            )
        if "why" in found and not waived:
            raise at.child("why").error(
                found["why"][0], "is given, but no live gate is waived", "Remove it or write `live: waived`."
            )
        return Stage(**(values | {"live": ()} if waived else values))

    def write(self, value: Stage) -> dict[str, Any]:
        plain = super().write(value)
        return plain | {"live": WAIVED} if value.live_waived else plain


class _Some(Items):
    """A list that names at least one thing, each once; the order says nothing."""

    def read(self, node: yaml.Node, at: At) -> tuple[Any, ...]:
        found = super().read(node, at)
        if not found:
            raise at.error(node, "names nothing", "List at least one, or remove the key to take all.")
        return tuple(sorted(set(found)))


APPROVAL = Section(
    Approval,
    {"within": Field(Duration("1d", least=1.0), "within_seconds"), "by_author": Field(Flag())},
)
STAGE = _StageSection(
    Stage,
    {
        "name": Field(Text("canary-5", SLUG, "lower-case letters, digits, `.`, `_`, `:` or `-`")),
        "weight": Field(Weight()),
        "bake": Field(Duration("10m"), "bake_seconds"),
        "live": Field(_Live()),
        "why": Field(Text("a demo without users"), "live_waived"),
        "approval": Field(APPROVAL),
    },
)
LIMITS = Section(
    Limits,
    {
        "max_hold": Field(Duration("1d", least=1.0), "max_hold_seconds"),
        "no_data": Field(Duration("1h", least=1.0), "no_data_seconds"),
        "fresh": Field(Duration("1h", least=1.0), "fresh_seconds"),
        "max_errors": Field(Number("5", least=1, integer=True)),
        "max_requests": Field(Number("20000", least=1, integer=True)),
        "kill_ramp": Field(Duration("5m"), "kill_ramp_seconds"),
        "cooldown": Field(Duration("1h"), "cooldown_seconds"),
        "cooldown_factor": Field(Number("2", least=1, most=100)),
        "max_cooldown": Field(Duration("7d"), "max_cooldown_seconds"),
        "max_attempts": Field(Number("5", least=1, most=1000, integer=True)),
        "bake_gap": Field(Duration("1m", least=1.0), "bake_gap_seconds"),
    },
)
SCHEDULE = Section(
    ShadowSchedule,
    {
        "cron": Field(Text("0 3 * * *")),
        "timezone": Field(Text("UTC")),
        "max_requests": Field(Number("2000", least=1, integer=True)),
        "max_minutes": Field(Number("60", least=1, most=10_080)),
    },
)
MATCH = Section(
    Match,
    {
        "endpoints": Field(_Some(OneOf(ENDPOINTS))),
        "strata": Field(_Some(OneOf(tuple(s.value for s in Stratum)))),
        "stream": Field(OneOf(STREAMS)),
        "max_temperature": Field(Number("1.0", above=0, most=2)),
    },
)
NOTIFY = Section(
    NotifyTarget,
    {
        "webhook": Field(Text("oncall", SLUG, "lower-case letters, digits, `.`, `_`, `:` or `-`")),
        "events": Field(_Some(OneOf(EVENTS))),
    },
)
