"""Reads a policy's `structured` section: a JSON Schema written inline, or in a file beside the policy.

A schema that is none is refused with the policy, never found out at the first answer.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from canary.domain.errors import PolicyError, UsageError
from canary.domain.live_policy import STRUCTURED_KINDS, Structured
from canary.domain.traffic import PLAIN_FORM
from canary.flow.structured import Validity, promised
from canary.flow.tools.yaml_nodes import At
from canary.flow.tools.yaml_scalars import OneOf, Text
from canary.flow.tools.yaml_sections import Field, Section

MAX_SCHEMA = 256 * 1024  # bytes


class Json:
    """Any JSON value, written as YAML; kept as JSON text."""

    def read(self, node: yaml.Node, at: At) -> str:
        try:
            value = yaml.SafeLoader("").construct_document(node)
            return _canonical(value)
        except (ValueError, TypeError, RecursionError, yaml.YAMLError):
            raise at.error(node, "is not a JSON value", "Write it as in JSON; quote what looks like a date.") from None

    def write(self, value: str) -> Any:
        return json.loads(value)

    def schema(self) -> dict[str, Any]:
        return {"type": ["object", "array", "boolean"]}


STRUCTURED = Section(
    Structured,
    {
        "kind": Field(OneOf(STRUCTURED_KINDS)),
        "schema": Field(Json()),
        "schema_file": Field(Text("order.schema.json")),
    },
)


def resolved(structured: Structured | None, folder: Path | None) -> Structured | None:
    """The section with its schema in it, wherever that was written, and checked.

    Args:
        folder: of the policy's file; None where the text did not come from one.

    Raises:
        PolicyError: names the field.
    """
    if structured is None:
        return None
    if structured.schema_file is not None:
        structured = replace(structured, schema=_from_file(structured, folder), schema_file=None)
    try:
        promise = promised(structured, PLAIN_FORM)
        if promise is not None:
            Validity(promise)
    except UsageError as error:
        raise PolicyError(error.detail.rstrip("."), where="structured.schema", remedy=error.remedy) from None
    return structured


def _from_file(structured: Structured, folder: Path | None) -> str:
    where = "structured.schema_file"
    if structured.schema:
        raise PolicyError("schema and schema_file are both given", where=where, remedy="Keep one of them.")
    if folder is None or structured.schema_file is None:
        raise PolicyError("a file cannot be read here", where=where, remedy="Write the schema inline, under `schema:`.")
    path = folder / structured.schema_file
    try:
        block = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"{path} cannot be read: {error.strerror or error}", where=where, remedy="Name a JSON file.") from error
    if len(block) > MAX_SCHEMA:
        raise PolicyError(f"{path} is longer than {MAX_SCHEMA} bytes", where=where, remedy="Name a shorter schema.")
    try:
        return _canonical(json.loads(block))
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{path} is not JSON", where=where, remedy="Mend it.") from error


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
