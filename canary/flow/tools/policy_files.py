"""Policy files: YAML in, `Policy` out, every complaint at its line; and back as canonical YAML, content hash, JSON Schema.

All three follow from the same field tables. A file never becomes a policy in part.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from canary.domain.catalogue import ALL_FAULTS, CATALOGUE
from canary.domain.drills import Drills
from canary.domain.errors import PolicyError
from canary.domain.live_policy import LiveGates
from canary.domain.policy import Gates, Policy, Shadow, Subject
from canary.flow.tools.yaml_drafter import DRAFTER
from canary.flow.tools.yaml_modes import Modes, Strata
from canary.flow.tools.yaml_nodes import At, parse
from canary.flow.tools.yaml_scalars import Duration, Flag, Number, OneOf, Text
from canary.flow.tools.yaml_sections import Field, Items, Section, Table
from canary.flow.tools.yaml_stages import LIMITS as LIMITS
from canary.flow.tools.yaml_stages import MATCH, NOTIFY, SCHEDULE, SLUG, STAGE
from canary.flow.tools.yaml_structured import STRUCTURED, resolved


def _rate(example: str, below: float = 1.0) -> Field:
    return Field(Number(example, above=0.0, below=below))


SUBJECT = Section(
    Subject,
    {
        "engine": Field(OneOf(("own",))),
        "target": Field(Text("SmolLM2-135M-Instruct")),
        "dtype": Field(OneOf(("auto", "float32", "bfloat16"))),
        "drafter": Field(DRAFTER),
        "fault": Field(Text("resample_from_target", r"[a-z][a-z0-9_]*", "a fault's name")),
        "device": Field(Text("cuda:0", r"cpu|cuda(:\d{1,3})?", "`cpu`, `cuda` or `cuda:N`")),
        "graphs": Field(OneOf(("off", "cuda_graphs", "compile"))),
    },
)
SHADOW = Section(
    Shadow,
    {
        "batch_size": Field(Number("8", least=1, most=1024, integer=True)),
        "max_tokens": Field(Number("256", least=1, most=1_000_000, integer=True)),
        "mirror_rate": Field(Number("1.0", above=0, most=1)),
        "requests_per_day": Field(Number("5000", least=1, integer=True)),
        "lease": Field(Duration("2m", least=1.0), "lease_seconds"),
        "max_retries": Field(Number("2", least=0, most=100, integer=True)),
        "calibration_requests": Field(Number("20", least=1, most=10_000, integer=True)),
        "control_rate": Field(Number("0.05", least=0, most=0.5)),
        "control_batch_size": Field(Number("4", least=1, most=1024, integer=True)),
        "timing_concurrency": Field(Number("1", least=1, most=1024, integer=True)),
        "schedule": Field(SCHEDULE),
    },
)
GATES = Section(
    Gates,
    {
        "alpha": Field(Number("0.01", above=0, below=0.5)),
        "margin": Field(Number("0.01", above=0, below=0.5)),
        "request_margin": _rate("0.01", below=0.5),
        "row_margin": _rate("0.005"),
        "tau_row": _rate("0.2"),
        "outlier_rate": _rate("0.001", below=0.5),
        "tau_gap": Field(Number("0.5", above=0)),
        "gap_rate": _rate("0.001", below=0.5),
        "gap_floor": _rate("0.00002"),
        "noise_floor_positions": Field(Number("5000", least=1, integer=True)),
        "min_informative": Field(Number("500", least=1, integer=True)),
        "acceptance_floor": _rate("0.5"),
        "acceptance_drift_margin": _rate("0.1"),
        "speed_ratio": Field(Number("1.1", above=0, below=100)),
        "min_speed_tokens": Field(Number("8", least=2, integer=True)),
        "error_margin": _rate("0.01"),
        "watch_requests_per_day": Field(Number("10000", least=1)),
        "speed_concurrency": Field(Number("1", least=1, most=4096, integer=True)),
        "ttft_ratio": Field(Number("1.1", least=1, below=100)),
        "ttft_slack": Field(Duration("5ms"), "ttft_slack_seconds"),
        "ttft_tail_margin": _rate("0.02", below=0.5),
        "ttft_slo": Field(Duration("500ms", least=0.001), "ttft_slo_seconds"),
        "memory_headroom": _rate("0.1"),
        "modes": Field(Modes()),
        "strata": Field(Strata()),
        "control_limit": Field(Number("1000", least=100)),
    },
)
LIVE = Section(
    LiveGates,
    {
        "min_requests": Field(Number("50", least=1, integer=True)),
        "speed_ratio": Field(Number("1.05", above=0.125, below=8)),
        "success_margin": _rate("0.02", below=0.5),
        "thumbs_margin": _rate("0.05", below=0.5),
    },
)
DRILLS = Section(
    Drills,
    {
        "required": Field(Items(OneOf((ALL_FAULTS, *CATALOGUE)))),
        "max_age": Field(Duration("7d", least=60.0), "max_age_seconds"),
    },
)
POLICY = Section(
    Policy,
    {
        "route": Field(Text("math", SLUG, "lower-case letters, digits, `.`, `_`, `:` or `-`")),
        "quick_look": Field(Flag()),
        "subject": Field(SUBJECT),
        "match": Field(MATCH),
        "shadow": Field(SHADOW),
        "gates": Field(GATES),
        "stages": Field(Items(STAGE)),
        "limits": Field(LIMITS),
        "economy": Field(OneOf(("restart", "carry"))),
        "on_drift": Field(OneOf(("baseline", "keep"))),
        "on_no_data": Field(OneOf(("keep", "baseline"))),
        "inside_margin": Field(OneOf(("kill", "hold"))),
        "live_gates": Field(LIVE),
        "structured": Field(STRUCTURED),
        "drills": Field(DRILLS),
        "on_lost": Field(OneOf(("keep", "baseline"))),
        "max_stale": Field(Duration("1m", least=1.0), "max_stale_seconds"),
        "notify": Field(Items(NOTIFY)),
        "labels": Field(Table(Text("platform"))),
    },
)


def load(path: str | Path) -> Policy:
    """The policy in a file.

    Raises:
        PolicyError: names file, line, column and field, and says what to write instead.
    """
    return load_text(read_text(path), str(path), folder=Path(path).parent)


def read_text(path: str | Path) -> str:
    """A file's text.

    Raises:
        PolicyError: it cannot be read or is not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        detail = f"cannot be read: {error.strerror or error}."
        raise PolicyError(detail, where=str(path), remedy="Name a YAML file that exists.") from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"is not UTF-8 at byte {error.start}.", where=str(path), remedy="Save it as UTF-8.") from error


def load_text(text: str, name: str = "policy", *, folder: Path | None = None) -> Policy:
    """The policy in a text; `name` stands for the file in complaints.

    Args:
        folder: where files that the policy names lie; None where it may name none.

    Raises:
        PolicyError: see `load`.
    """
    root, at = parse(text, name), At(name)
    policy: Policy = POLICY.read(root, at)
    try:
        policy.subject.drafter.check()
        policy = replace(policy, structured=resolved(policy.structured, folder))
        policy.check()
    except PolicyError as error:
        mark = _locate(root, error.where).start_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}"
        raise PolicyError(f"{error.where}: {error.detail}.", where=where, remedy=error.remedy) from error
    return replace(policy, content_hash=content_hash(policy))


def content_hash(policy: Policy) -> str:
    """SHA-256 of what the policy says: key order, comments, spellings of a value and spelt-out defaults do not matter."""
    canonical = json.dumps(POLICY.write(policy), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def dump(policy: Policy) -> str:
    """Canonical YAML: known order, only what differs from the defaults; `load_text` gives the same policy back."""
    return yaml.safe_dump(POLICY.write(policy), sort_keys=False, allow_unicode=True, width=120)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a policy file; the file itself is stricter where fields must fit together."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:canary:policy", "title": "Canary policy"}
    return {**head, **POLICY.schema()}


def schema_json() -> str:
    """The JSON Schema as text, the same for the same version: keys sorted, two spaces, a newline at the end."""
    return json.dumps(schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _locate(root: yaml.Node, path: str) -> yaml.Node:
    """The node that a field's path is about, or the nearest one above it; stages go by their names."""
    node = root
    for part in path.split("."):
        if isinstance(node, yaml.SequenceNode):
            named = [n for n in node.value if any(v.value == part for _, v in n.value)]
            node = named[0] if named else node
            continue
        if not isinstance(node, yaml.MappingNode):
            break
        found = [child for key, child in node.value if key.value == part]
        node = found[0] if found else node
    return node
