"""How the API writes: its answers as plain ASCII JSON, and its document, FastAPI's own without what this API never answers."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse

from canary.api import ofrep_document
from canary.api.actions import ACTIONS
from canary.api.idempotency import UNKEPT
from canary.domain.access import ANYBODY

WRITES = ("POST", "PUT", "DELETE")
MADE_UP = "HTTPValidationError"  # FastAPI documents it for every endpoint; here a wrong request is a problem with status 400
KEY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Sent again with the same request, the first one's answer comes back.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[\\x21-\\x7e]+$"},
}


class EscapedJSON(JSONResponse):
    """JSON in ASCII: a text that a model answered may hold half a character, which no UTF-8 can."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def describe(app: FastAPI) -> None:
    """Make the application describe itself."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(ofrep_document.schemas())
    found["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    for methods in found["paths"].values():
        for operation in methods.values():
            _mend(operation["responses"])
    found["paths"].update(ofrep_document.paths())
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            _admit(operation, f"{method.upper()} {path}")
    for name in (MADE_UP, "ValidationError"):
        schemas.pop(name, None)
    return found


def _mend(answers: dict[str, Any]) -> None:
    """Say of the errors what this API answers, where the framework says what it would have."""
    if MADE_UP in str(answers.get("422")):
        del answers["422"]
    for status, answer in answers.items():
        content = answer.get("content", {})
        if "application/problem+json" in content and "application/json" in content:
            content["application/problem+json"] = content.pop("application/json")
        if status == "304":
            answer.pop("content", None)


def _admit(operation: dict[str, Any], name: str) -> None:
    """Say who is let in, and whether a repeat is answered as the first request was."""
    entry = ACTIONS.get(name)
    if entry is not None:
        operation["x-canary-action"] = entry.action.value
        if entry.action not in ANYBODY:
            operation["security"] = [{"bearer": []}, {"key": []}]
    if name.split()[0] in WRITES and (entry is None or entry.action not in UNKEPT):
        operation.setdefault("parameters", []).append(KEY_HEADER)
