"""The bodies and answers of the API as strict models: unknown fields, NaN, infinities and loose types are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from canary.api.deps import MAX_CURSOR
from canary.domain.access import Action, Role
from canary.domain.pins import LONGEST_SECONDS, LONGEST_UNIT
from canary.flow.tools.commands import MAX_REASON
from canary.flow.tools.keys import LONGEST_OWNER, MAX_DAYS, MOST_ROUTES

PAGE, MAX_PAGE = 50, 200
MAX_POLICY = 256 * 1024  # characters of a policy's text
MAX_ID = 512

# A sentence: no NUL, which no database text can hold, and more than blanks.
SENTENCE = r"^[^\x00]*[^\s\x00][^\x00]*$"
ROUTE = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$"

RouteName = Annotated[str, Path(pattern=ROUTE, description="The route, as its policy names it.")]
LogName = Annotated[
    str, Path(pattern=r"^([A-Za-z0-9][A-Za-z0-9._:-]{0,99}|\*)$", description="A route; `*` for events about no one route.")
]
KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$", description="The public part of a key.")]
PairId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,100}$", description="A pair's id.")]
JobName = Annotated[str, Path(pattern=r"^[a-z_]{1,50}$", description="The job, as `GET /api/v1/jobs` names it.")]
UNIT = r"^[^/\x00-\x1f\x7f]{1,200}$"
UnitName = Annotated[
    str,
    Path(
        pattern=UNIT,
        max_length=LONGEST_UNIT,
        description="The unit, exactly as flags are resolved for it; one with a `/` is pinned by `canary flags pin`.",
    ),
]
Kind = Annotated[str | None, Query(pattern=r"^[a-z_]{1,50}$", description="Events of this kind only.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most items of the page.")]
Cursor = Annotated[str | None, Query(max_length=MAX_CURSOR, description="`next` of the page before.")]


class Strict(BaseModel):
    """A body in which every word counts."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    remedy: str | None = None
    where: str | None = None


class Order(Strict):
    """A person's order about one route."""

    reason: str = Field(min_length=1, max_length=MAX_REASON, pattern=SENTENCE, description="Why, in a sentence.")
    actor: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_REASON,
        pattern=SENTENCE,
        description="Who; needed only where the service runs without keys.",
    )


class PolicyText(Strict):
    """A policy's YAML."""

    text: str = Field(min_length=1, max_length=MAX_POLICY, pattern=SENTENCE)
    actor: str | None = Field(default=None, min_length=1, max_length=MAX_REASON, pattern=SENTENCE)


class Approval(Strict):
    """An approval of one proposed policy."""

    content_hash: str = Field(pattern=r"^[0-9a-f]{64}$", description="The proposed policy's, so that nobody agrees unseen.")
    actor: str | None = Field(default=None, min_length=1, max_length=MAX_REASON, pattern=SENTENCE)


class Feedback(Strict):
    """What was learnt about one served request later."""

    route: str = Field(pattern=ROUTE)
    request_id: str = Field(
        min_length=1, max_length=MAX_ID - 32, pattern=SENTENCE, description="The id of the request's observation."
    )
    arm: Literal["baseline", "candidate"] | None = Field(
        default=None, description="Which variant served it; left out where an observation says so already."
    )
    thumbs: Literal[1, -1] | None = None
    task_success: bool | None = None
    observed_at: float | None = Field(default=None, ge=0, le=1e11, description="Seconds since the epoch; now by default.")


class KeyOrder(Strict):
    """A key to be made."""

    owner: str = Field(
        min_length=1, max_length=LONGEST_OWNER, pattern=SENTENCE, description="The person or service that holds it."
    )
    role: Annotated[Role, Field(strict=False)]
    scopes: Annotated[list[Action], Field(strict=False, max_length=len(Action))] = Field(default_factory=list)
    routes: list[Annotated[str, Field(pattern=ROUTE)]] = Field(default_factory=list, max_length=MOST_ROUTES)
    days: float | None = Field(default=None, gt=0, le=MAX_DAYS, description="Until it expires; left out for never.")
    actor: str | None = Field(default=None, min_length=1, max_length=MAX_REASON, pattern=SENTENCE)


class Rotation(Strict):
    """A key to be replaced."""

    grace_seconds: float = Field(default=86_400.0, ge=0, le=MAX_DAYS * 86_400, description="How long the old one still opens.")
    actor: str | None = Field(default=None, min_length=1, max_length=MAX_REASON, pattern=SENTENCE)


class PinOrder(Strict):
    """A unit to be pinned."""

    variant: Literal["baseline", "candidate"]
    reason: str = Field(min_length=1, max_length=MAX_REASON, pattern=SENTENCE, description="Why, in a sentence.")
    expires_seconds: float | None = Field(
        default=None, gt=0, le=LONGEST_SECONDS, description="Until the pin ends; left out for no end."
    )
    actor: str | None = Field(default=None, min_length=1, max_length=MAX_REASON, pattern=SENTENCE)


class Actor(Strict):
    """Who asks; needed only where the service runs without keys."""

    actor: str | None = Field(default=None, min_length=1, max_length=MAX_REASON, pattern=SENTENCE)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that an endpoint may answer, for the API's document: those given and those that any endpoint may."""
    words = {
        304: "Not modified",
        400: "The request is wrong",
        401: "No valid key",
        403: "The key does not allow it",
        404: "There is no such route, page or object",
        405: "The page has not this method",
        409: "It does not fit the present state",
        412: "The state is not the expected one",
        413: "The body is too long",
        415: "The body is of an unknown kind",
        422: "The content is not legal",
        428: "If-Match is missing",
        429: "Too many requests",
        500: "A bug in Canary",
        503: "Something that Canary needs does not answer",
    }
    everywhere = (400, 401, 403, 404, 405, 500, 503)
    body: dict[str, Any] = {"model": Problem, "content": {"application/problem+json": {}}}
    chosen = sorted({*everywhere, *statuses})
    return {status: {"description": words[status], **({} if status == 304 else body)} for status in chosen}


WRITING = (409, 413, 422)  # beside those of the endpoint itself: a body too long, an Idempotency-Key running or used
