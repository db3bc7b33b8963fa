"""What gateways report: observations of served requests, and what was learnt about one later."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool

from canary.api.deps import Api, caller_of
from canary.api.schemas import WRITING, Feedback, problems
from canary.domain.errors import ForbiddenError, UnsupportedTypeError
from canary.domain.pairs import Arm
from canary.flow.tools.intake import Item, Taken, feedback, read_batch, take
from canary.flow.walk.observe import MAX_BATCH

JSON, LINES = "application/json", ("application/x-ndjson", "application/jsonl")
ITEM = {"type": "object", "description": "One observation, as canary/docs/api.md lists its fields; `route` is one of them."}
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {"schema": {"anyOf": [ITEM, {"type": "array", "items": ITEM, "maxItems": MAX_BATCH}]}},
            LINES[0]: {"schema": {"type": "string", "description": "One object a line."}},
        },
    }
}


def router(api: Api) -> APIRouter:
    """Reporting."""
    made = APIRouter(tags=["observations"])

    @made.post("/api/v1/observations", responses=problems(*WRITING, 415), openapi_extra=BODY)
    async def observations(request: Request) -> dict[str, object]:
        """Keep observations, each id once: one object, an array, or one object a line; every item has its own state.

        If none can be taken, the first one's problem is the answer.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (JSON, *LINES):
            raise UnsupportedTypeError(
                "the body is of an unknown kind", where="Content-Type", remedy=f"Send {JSON} or {LINES[0]}."
            )
        body = await request.body()
        sees = caller_of(request).sees

        def work() -> list[Item]:
            return take(api.store, read_batch(body, lines=kind in LINES), sees, api.clock())

        items = await run_in_threadpool(work)
        refused = [item.error for item in items if item.error is not None]
        if refused and len(refused) == len(items):
            raise refused[0]
        counts = {state.value: sum(item.state is state for item in items) for state in Taken}
        return {**counts, "items": [_item(item) for item in items]}

    @made.post("/api/v1/feedback", responses=problems(*WRITING))
    def feed_back(word: Feedback, request: Request) -> dict[str, object]:
        """Keep a thumb or a task's success by the id of its request; the first word stays."""
        if not caller_of(request).sees(word.route):
            raise ForbiddenError("the key is not for this route", where="/route", remedy="Use a key for it.")
        state = feedback(
            api.store,
            word.route,
            word.request_id,
            api.clock(),
            arm=None if word.arm is None else Arm(word.arm),
            thumbs=word.thumbs,
            task_success=word.task_success,
            observed_at=word.observed_at,
        )
        return {"state": state.value}

    return made


def _item(item: Item) -> dict[str, object]:
    return {"state": item.state.value} | ({} if item.error is None else {"problem": item.error.problem()})
