"""The service about itself: whether it answers, its flags from memory, and the schema of policies."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from canary import __version__
from canary.api.deps import Api, caller_of, tag
from canary.api.holders import CLIENT_HEADER, HOLDS_HEADER
from canary.api.keyring import Mode
from canary.api.schemas import problems
from canary.api.seen import limited, seen_by
from canary.domain.errors import UnreachableError
from canary.flow.tools import policy_files

EXACT_AGE = "Canary-Age"  # `Age` has whole seconds only (RFC 9111, 5.1)
SNAPSHOT: dict[str, Any] = {
    "description": "The flags",
    "headers": {
        "ETag": {"description": "Strong, over the content.", "schema": {"type": "string"}},
        "Age": {"description": "Seconds since the store vouched for it, without their fraction.", "schema": {"type": "integer"}},
        EXACT_AGE: {"description": "The same with three decimals.", "schema": {"type": "number"}},
    },
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["version", "flags"],
                "properties": {
                    "version": {"type": "integer", "minimum": 0},
                    "flags": {"type": "object", "additionalProperties": {"type": "object"}},
                },
            }
        }
    },
}


def router(api: Api) -> APIRouter:
    """Endpoints that touch memory only."""
    made = APIRouter()

    @made.get("/api/v1/flags/snapshot", responses={**problems(304), 200: SNAPSHOT}, tags=["flags"])
    async def snapshot(
        request: Request,
        if_none_match: Annotated[str | None, Header()] = None,
        client: Annotated[str | None, Header(alias=CLIENT_HEADER)] = None,
        holds: Annotated[str | None, Header(alias=HOLDS_HEADER)] = None,
    ) -> Response:
        """All flags that the key may see, from memory. `ETag` names the content; `Age` is how many whole seconds ago the store
        vouched for it, and `Canary-Age` how many exactly, which is what makes a flag stale.

        A client may name itself and the snapshot that it holds; kill drills ask for that.
        """
        api.kills.holders.note(client, holds)
        published, age = api.flags.published, api.flags.age_seconds
        if published is None or age is None:
            raise UnreachableError("no flag snapshot has been read yet", remedy="Serve the baseline and ask again.")
        body, etag = published.body, published.etag
        caller = caller_of(request)
        if limited(caller):
            text = seen_by(caller, published.snapshot).to_json()
            body, etag = text.encode(), tag(text)
        headers = {"ETag": etag, "Age": str(int(age)), EXACT_AGE: f"{age:.3f}", "Cache-Control": "no-cache"}
        if if_none_match is not None and _matches(if_none_match, etag):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="application/json", headers=headers)

    @made.get("/healthz", responses=problems(), tags=["service"])
    async def healthz() -> dict[str, object]:
        """Whether the process answers, how old its flags are, and whether it asks for keys."""
        mode = api.ring.mode
        said = {Mode.KEYS: "keys", Mode.NONE: "none", Mode.UNKNOWN: "unknown"}[mode]
        return {"status": "ok", "version": __version__, "flags_age_seconds": api.flags.age_seconds, "auth": said}

    @made.get("/schemas/policy.json", responses=problems(), tags=["policies"])
    def policy_schema() -> dict[str, Any]:
        """The JSON Schema of policy files."""
        return policy_files.schema()

    return made


def _matches(header: str, etag: str) -> bool:
    """If-None-Match by weak comparison (RFC 9110, 13.1.2)."""
    return header.strip() == "*" or etag in (part.strip().removeprefix("W/") for part in header.split(","))
