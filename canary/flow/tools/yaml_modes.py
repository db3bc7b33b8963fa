"""Readers of a policy's gate and stratum modes: which gates count less or otherwise than they ordinarily do, and why.

A gate that a promotion cannot do without has no mode, and naming it here is refused.
"""

from __future__ import annotations

from typing import Any

import yaml

from canary.domain.modes import ASIDE, MODES, GateMode, Mode, StratumMode
from canary.domain.traffic import Stratum
from canary.flow.tools.yaml_nodes import At, entries, nearest
from canary.flow.tools.yaml_scalars import OneOf, Text
from canary.flow.tools.yaml_sections import Field, Section


class Modes:
    """A mapping from gates to how much they count, each with its reason."""

    of = Section(GateMode, {"mode": Field(OneOf(tuple(Mode))), "why": Field(Text("the route times few requests"))})

    def read(self, node: yaml.Node, at: At) -> tuple[GateMode, ...]:
        found = []
        for gate, (key, child) in entries(node, at).items():
            if gate not in MODES:
                remedy = f"{nearest(gate, MODES)}Gates with a mode: {', '.join(MODES)}; every other gate is required."
                raise at.error(key, f"has no gate {gate!r}", remedy)
            values = self.of.values(child, at.child(gate))
            found.append(GateMode(gate, Mode(values["mode"]), values["why"]))
        return tuple(sorted(found, key=lambda m: m.gate))

    def write(self, value: tuple[GateMode, ...]) -> dict[str, Any]:
        return {m.gate: {"mode": m.mode.value, "why": m.why} for m in value}

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": False, "properties": dict.fromkeys(MODES, self.of.schema())}


class Strata:
    """A mapping from strata that the flag leaves out to how much their certificates count, each with its reason."""

    of = Section(StratumMode, {"mode": Field(OneOf(tuple(ASIDE))), "why": Field(Text("nobody samples on this route yet"))})

    def read(self, node: yaml.Node, at: At) -> tuple[StratumMode, ...]:
        found, known = [], [s.value for s in Stratum]
        for stratum, (key, child) in entries(node, at).items():
            if stratum not in known:
                raise at.error(key, f"has no stratum {stratum!r}", f"{nearest(stratum, known)}Strata: {', '.join(known)}.")
            values = self.of.values(child, at.child(stratum))
            found.append(StratumMode(stratum, Mode(values["mode"]), values["why"]))
        return tuple(sorted(found, key=lambda m: m.stratum))

    def write(self, value: tuple[StratumMode, ...]) -> dict[str, Any]:
        return {m.stratum: {"mode": m.mode.value, "why": m.why} for m in value}

    def schema(self) -> dict[str, Any]:
        inner = {k: v.reader.schema() for k, v in self.of.fields.items()}
        one = {"type": "object", "additionalProperties": False, "properties": inner, "required": ["mode", "why"]}
        return {"type": "object", "additionalProperties": False, "properties": {s.value: one for s in Stratum}}
