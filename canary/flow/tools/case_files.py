"""Files of golden decisions: what NAME.cases.yaml may say, read with the same complaints as a policy.

Reading decides nothing and knows no outcome; `cases` runs what is read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from canary.domain.evidence import Verdict
from canary.domain.truth_table import ROWS, Kind
from canary.flow.tools.policy_files import read_text
from canary.flow.tools.yaml_nodes import At, nearest, parse, said
from canary.flow.tools.yaml_scalars import Duration, Flag, Number, OneOf, Reader, Text
from canary.flow.tools.yaml_sections import Field, Items, Section, Table

REASONS = (*dict.fromkeys(row.case for row in ROWS), "pending", "cool_down", "attempts_used_up", "rolled_back", "archived")


@dataclass(frozen=True, slots=True)
class GateCase:
    """One gate as a case gives it.

    Args:
        verdict: `pass`, `fail`, `inconclusive`, `no_data`, `error`, or `absent`.
        component_fired: for losslessness: whether a component test fired.
    """

    verdict: str
    reason: str = ""
    value: float | None = None
    threshold: float | None = None
    needed: int | None = None
    component_fired: bool | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """One situation; what it leaves out is healthy.

    Args:
        gates: changes to the file's own gates; `live speed` is the gate `speed` measured on live traffic.
        baked, in_stage, newest_pair: healthy seconds in the stage, seconds since it was entered, age of the newest pair.
        pairs: folded pairs; 0 has no newest pair.
        errors: earlier assessments in a row that could not measure.
        killed: the kill switch is on already; manual_kill: somebody kills now, and why.
        evidence: `current`, `none`, or `other_epoch`.
        engine: `subject`, or `other` where the shadow ran on another engine.
        asked: how long the next stage has waited for a person; approved: how long ago one agreed.
        rollbacks: of this epoch; cooling: how much of a cool-down is left.
    """

    gates: Mapping[str, GateCase] = field(default_factory=dict)
    baked: float = 0.0
    in_stage: float = 30.0
    newest_pair: float = 0.0
    pairs: int = 500
    errors: int = 0
    killed: bool = False
    manual_kill: str | None = None
    evidence: str = "current"
    engine: str = "subject"
    asked: float | None = None
    approved: float | None = None
    rollbacks: int = 0
    cooling: float = 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """`decision, reason, weight` at one place."""

    decision: str
    reason: str
    weight: int


@dataclass(frozen=True, slots=True)
class Case:
    """One golden case.

    Args:
        expect: by place: a state at rest, a stage's name, or `held at STAGE`.
        row: row of the truth table that must decide.
        missing: gates that the decision must name as lacking.
    """

    name: str
    expect: Mapping[str, Expected]
    given: Given = field(default_factory=Given)
    row: int | None = None
    missing: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A policy's cases; `gates` is the evidence that every case starts from."""

    gates: Mapping[str, GateCase]
    cases: tuple[Case, ...]


class _Gate:
    """A verdict's word, or a mapping with more."""

    full = Section(
        GateCase,
        {
            "verdict": Field(OneOf((*(v.value for v in Verdict), "absent"))),
            "reason": Field(Text("too_few")),
            "value": Field(Number("1.05")),
            "threshold": Field(Number("1.1")),
            "needed": Field(Number("120", least=0, integer=True)),
            "component_fired": Field(Flag()),
        },
    )

    def read(self, node: yaml.Node, at: At) -> GateCase:
        if isinstance(node, yaml.ScalarNode):
            return GateCase(self.full.fields["verdict"].reader.read(node, at))
        found: GateCase = self.full.read(node, at)
        return found

    def write(self, value: GateCase) -> dict[str, Any]:
        return self.full.write(value)

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [self.full.fields["verdict"].reader.schema(), self.full.schema()]}


class _Expected:
    """`decision, reason, weight`, as in `advance, all_pass, 5 %`."""

    REMEDY = "Write `decision, reason, weight`, e.g. `advance, all_pass, 5 %`."

    def read(self, node: yaml.Node, at: At) -> Expected:
        parts = [p.strip() for p in node.value.split(",")] if isinstance(node, yaml.ScalarNode) else []
        if len(parts) != 3 or not parts[2].endswith("%"):
            raise at.error(node, f"is {said(node)}, but must be three words", self.REMEDY)
        kinds = [k.value for k in Kind]
        for word, known in ((parts[0], kinds), (parts[1], REASONS)):
            if word not in known:
                raise at.error(node, f"has an unknown word {word!r}", f"{nearest(word, known)}Use one of: {', '.join(known)}.")
        try:
            return Expected(parts[0], parts[1], round(float(parts[2][:-1]) * 100))
        except ValueError as error:
            raise at.error(node, f"has the weight {parts[2]!r}", self.REMEDY) from error

    def write(self, value: Expected) -> str:
        return f"{value.decision}, {value.reason}, {value.weight / 100:g} %"

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}


def _section(of: type, **readers: Reader) -> Section:
    return Section(of, {key: Field(reader) for key, reader in readers.items()})


GIVEN = _section(
    Given,
    gates=Table(_Gate()),
    baked=Duration(),
    in_stage=Duration(),
    newest_pair=Duration(),
    pairs=Number("500", least=0, integer=True),
    errors=Number("4", least=0, integer=True),
    killed=Flag(),
    manual_kill=Text("an incident"),
    evidence=OneOf(("current", "none", "other_epoch")),
    engine=OneOf(("subject", "other")),
    asked=Duration(),
    approved=Duration(),
    rollbacks=Number("1", least=0, integer=True),
    cooling=Duration(),
)
CASE = _section(
    Case,
    name=Text("all gates pass"),
    given=GIVEN,
    row=Number("9", least=1, most=9, integer=True),
    expect=Table(_Expected()),
    missing=Items(Text("speed")),
)
CASES = _section(CaseFile, gates=Table(_Gate()), cases=Items(CASE))


def cases_path(policy_path: Path) -> Path:
    """NAME.cases.yaml of NAME.yaml."""
    return policy_path.with_name(f"{policy_path.stem}.cases.yaml")


def load_cases(path: Path) -> CaseFile:
    """A cases file.

    Raises:
        PolicyError: names file, line, column and field.
    """
    found: CaseFile = CASES.read(parse(read_text(path), str(path)), At(str(path)))
    return found
