"""Stored pairs: their numbers for whoever reads verdicts, their texts only for a key whose scopes name `content`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from canary.api.deps import Api, caller_of, page, place_of
from canary.api.schemas import PAGE, Cursor, Limit, PairId, RouteName, problems
from canary.domain.pairs import Generation, Pair, Timing
from canary.flow.attempt import rollout_of
from canary.flow.tools.contents import read_content

ANYBODY_HERE = "anybody on this machine"  # the reader where the service runs without keys


def router(api: Api) -> APIRouter:
    """Reading pairs."""
    made = APIRouter(tags=["pairs"])

    @made.get("/api/v1/routes/{route}/pairs", responses=problems())
    def pairs(route: RouteName, limit: Limit = PAGE, cursor: Cursor = None) -> dict[str, object]:
        """The numbers of the present attempt's pairs, by ordinal: counts, timings and finish reasons of both arms."""
        after = place_of(cursor, "pairs", int)
        with api.store.transaction() as tx:
            rollout = rollout_of(tx, route)
            place = -1 if after is None else after
            found = tx.pairs.page(route, rollout.epoch, rollout.attempt, after=place, limit=limit + 1)
        shown, following = page(found, limit, "pairs", lambda pair: pair.ordinal)
        return {
            "route": route,
            "epoch": rollout.epoch,
            "attempt": rollout.attempt,
            "pairs": [_numbers(pair) for pair in shown],
            "next": following,
        }

    @made.get("/api/v1/routes/{route}/pairs/{pair_id}/content", responses=problems())
    def content(route: RouteName, pair_id: PairId, request: Request) -> dict[str, object]:
        """The prompt beside both arms' answers; each reading is an event of the route's audit log.

        `prompt` is null once its content is past its lifetime, and the answers are empty then.
        """
        reader = caller_of(request).owner or ANYBODY_HERE
        return read_content(api.store, route, pair_id, reader, api.clock())

    return made


def _numbers(pair: Pair) -> dict[str, Any]:
    return {
        "pair_id": pair.pair_id,
        "ordinal": pair.ordinal,
        "control": pair.control,
        "error": pair.error,
        "baseline": _arm(pair.baseline, pair.baseline_timing),
        "candidate": _arm(pair.candidate, pair.candidate_timing),
    }


def _arm(generation: Generation, timing: Timing | None) -> dict[str, Any]:
    stats = generation.stats
    return {
        "finish_reason": generation.finish_reason,
        "failed": generation.error is not None,
        "num_tokens": len(generation.token_ids),
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "ttft_seconds": None if timing is None else timing.ttft_seconds,
        "total_seconds": None if timing is None else timing.total_seconds,
    }
