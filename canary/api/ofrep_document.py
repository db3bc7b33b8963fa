"""What the API's document says of OFREP (protocol 0.3.0): its endpoints are plain ASGI, so that no framework describes them."""

from __future__ import annotations

from typing import Any

from canary.api.schemas import Problem, problems
from canary.api.streams import EVENTS_PATH

EVALUATE_PATH = "/ofrep/v1/evaluate/flags"
PROBLEM, JSON = "application/problem+json", "application/json"

_SCALAR = {"type": ["string", "number", "boolean"]}
_CONTEXT = {
    "type": "object",
    "properties": {"targetingKey": {"type": ["string", "null"], "description": "The unit."}},
    "description": "The unit, and of the request what match rules ask: `endpoint`, `temperature`, `stream`.",
}

SCHEMAS: dict[str, Any] = {
    "OfrepRequest": {"type": "object", "properties": {"context": _CONTEXT}, "description": "An empty body is an empty context."},
    "OfrepEvaluation": {
        "type": "object",
        "required": ["key", "value", "reason", "variant", "metadata"],
        "properties": {
            "key": {"type": "string"},
            "value": {"oneOf": [{"type": "boolean"}, {"type": "object", "additionalProperties": _SCALAR}]},
            "reason": {"enum": ["STATIC", "TARGETING_MATCH", "SPLIT", "DISABLED", "UNKNOWN"]},
            "variant": {"enum": ["baseline", "candidate"]},
            "metadata": {"type": "object", "additionalProperties": _SCALAR},
        },
    },
    "OfrepFailure": {
        "type": "object",
        "required": ["errorCode", "errorDetails"],
        "properties": {
            "key": {"type": "string"},
            "errorCode": {
                "enum": ["PARSE_ERROR", "TARGETING_KEY_MISSING", "INVALID_CONTEXT", "FLAG_NOT_FOUND", "GENERAL"],
            },
            "errorDetails": {"type": "string"},
        },
    },
    "OfrepBulk": {
        "type": "object",
        "required": ["flags", "metadata", "eventStreams"],
        "properties": {
            "flags": {
                "type": "array",
                "items": {
                    "oneOf": [{"$ref": "#/components/schemas/OfrepEvaluation"}, {"$ref": "#/components/schemas/OfrepFailure"}]
                },
            },
            "metadata": {"type": "object", "additionalProperties": _SCALAR},
            "eventStreams": {"type": "array", "items": {"type": "object"}},
        },
    },
}

_EVENT = {
    "type": "object",
    "description": "One event.",
    "required": ["event", "data"],
    "properties": {
        "event": {"const": "message"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": '`{"type": "refetchEvaluation", "etag": ...}`',
        },
    },
}

_REQUEST = {"required": False, "content": {JSON: {"schema": {"$ref": "#/components/schemas/OfrepRequest"}}}}
_RETRY = {"Retry-After": {"description": "Whole seconds.", "schema": {"type": "integer", "minimum": 1}}}
_ETAG = {"ETag": {"description": "Over the answer and the context.", "schema": {"type": "string"}}}


def paths() -> dict[str, Any]:
    """The protocol's operations, by path and method."""
    return {
        f"{EVALUATE_PATH}/{{key}}": {"post": _single()},
        EVALUATE_PATH: {"post": _bulk()},
        EVENTS_PATH: {"get": _events()},
    }


def schemas() -> dict[str, Any]:
    """The components that `paths` refers to."""
    return {**SCHEMAS, "Problem": Problem.model_json_schema()}


def _single() -> dict[str, Any]:
    key = {
        "name": "key",
        "in": "path",
        "required": True,
        "description": "`specdec.ROUTE`, or `specdec-config.ROUTE` for what the engine is to be set to.",
        "schema": {"type": "string", "pattern": r"^specdec(-config)?\.[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$"},
    }
    return {
        "operationId": "ofrep_one",
        "summary": "Evaluate one flag",
        "description": "One flag for one unit, from memory. Whatever goes wrong inside is the baseline, never a 500.",
        "tags": ["ofrep"],
        "parameters": [key],
        "requestBody": _REQUEST,
        "responses": {"200": _answer("The flag's value", "OfrepEvaluation"), **_errors(failures=(400, 404, 413, 429))},
    }


def _bulk() -> dict[str, Any]:
    held = {"name": "If-None-Match", "in": "header", "required": False, "schema": {"type": "string"}}
    return {
        "operationId": "ofrep_all",
        "summary": "Evaluate every flag",
        "description": "Every flag that the key may see, for one unit; 304 where the caller holds exactly this answer.",
        "tags": ["ofrep"],
        "parameters": [held],
        "requestBody": _REQUEST,
        "responses": {
            "200": {**_answer("Every flag", "OfrepBulk"), "headers": _ETAG},
            "304": {"description": "Not modified", "headers": _ETAG},
            **_errors(failures=(400, 413, 429)),
        },
    }


def _events() -> dict[str, Any]:
    held = {
        "name": "flagConfigEtag",
        "in": "query",
        "required": False,
        "description": "What the client holds, so that it hears at once if that is old.",
        "schema": {"type": "string"},
    }
    return {
        "operationId": "ofrep_events",
        "summary": "Hear of changes",
        "description": "Server-sent events that say that something changed, never what; a comment says that the stream is alive.",
        "tags": ["ofrep"],
        "parameters": [held],
        "responses": {
            "200": {"description": "Events", "content": {"text/event-stream": {"schema": _EVENT}}},
            **_errors(failures=(503,)),
        },
    }


def _answer(said: str, schema: str) -> dict[str, Any]:
    return {"description": said, "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


def _errors(*, failures: tuple[int, ...]) -> dict[str, Any]:
    """Every error that the gate answers as a problem, and `failures`, which the protocol words itself, from inside the gate."""
    found: dict[str, Any] = {}
    for status, given in problems(*failures).items():
        content: dict[str, Any] = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        if status in failures:
            content[JSON] = {"schema": {"$ref": "#/components/schemas/OfrepFailure"}}
        headers = {"headers": _RETRY} if status in (429, 503) else {}
        found[str(status)] = {"description": given["description"], "content": content, **headers}
    return found
