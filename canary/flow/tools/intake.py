"""Observations and feedback as gateways send them: every item is judged by itself, so that one mistake costs one item.

Nothing of a prompt or an answer is taken, and a repeat is never an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from canary.domain.errors import CanaryError, ForbiddenError, NotFoundError, RequestError, UsageError
from canary.domain.observations import Observation
from canary.domain.pairs import Arm
from canary.flow.attempt import rollout_of
from canary.flow.ports import Store
from canary.flow.walk.observe import MAX_BATCH, Observed, observe, read_observation, require_past

ROUTE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")


class Taken(StrEnum):
    """What became of one item."""

    NEW = "new"
    REPEAT = "repeat"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Item:
    """One item's outcome.

    Args:
        error: why it was refused, None where it was taken.
    """

    state: Taken
    error: CanaryError | None = None


def read_batch(body: bytes, *, lines: bool) -> list[Any]:
    """The items of a request's body, decoded: one object, an array of them, or one a line.

    Raises:
        RequestError: it is not JSON, holds NaN or an infinity, or has too many items.
    """
    parts = [line for line in body.split(b"\n") if line.strip()] if lines else [body]
    if len(parts) > MAX_BATCH:
        raise _too_many(len(parts))
    found = [_decoded(part, f"/{at}" if lines else "") for at, part in enumerate(parts)]
    if not lines and isinstance(found[0], list):
        found = found[0]
    if len(found) > MAX_BATCH:
        raise _too_many(len(found))
    return found


def take(store: Store, items: Sequence[Any], sees: Callable[[str], bool], now: float) -> list[Item]:
    """Store what is right and new; one transaction for all of it.

    Args:
        items: decoded JSON values; each names its route.
        sees: whether the caller may report about a route.
        now: seconds since the epoch.

    Returns:
        One outcome per item, in order.
    """
    with store.transaction() as tx:
        known = {rollout.route for rollout in tx.rollouts.list()}
    read = [_read(item, known, sees, now) for item in items]
    good = [observation for observation in read if isinstance(observation, Observation)]
    states = iter(observe(store, good, now))
    taken = {Observed.NEW: Taken.NEW, Observed.REPEAT: Taken.REPEAT}
    return [Item(taken[next(states)]) if isinstance(r, Observation) else Item(Taken.REFUSED, r) for r in read]


def feedback(
    store: Store,
    route: str,
    request_id: str,
    now: float,
    *,
    arm: Arm | None = None,
    thumbs: int | None = None,
    task_success: bool | None = None,
    observed_at: float | None = None,
) -> Observed:
    """Keep what was learnt about a served request later; the first word about each of thumbs and success stays.

    Args:
        request_id: the id of the request's observation.
        arm: which variant served it; looked up where it is not said.
        observed_at: seconds since the epoch; now by default.

    Raises:
        RequestError: neither or both of thumbs and task success are said, or the arm is not known.
        NotFoundError: there is no such route.
    """
    if (thumbs is None) == (task_success is None):
        raise RequestError(
            "one of `thumbs` and `task_success` must be said", where="/thumbs", remedy="Send two requests for both."
        )
    with store.transaction() as tx:
        rollout_of(tx, route)
        served = tx.observations.get(route, request_id)
    if arm is None and served is None:
        raise RequestError(
            "no observation says which variant served the request", where="/arm", remedy="Send `arm`, or the observation first."
        )
    if arm is not None and served is not None and arm is not served.arm:
        raise RequestError(f"the request was served by the {served.arm}", where="/arm", remedy="Leave it out.")
    kind = "thumbs" if thumbs is not None else "task_success"
    chosen = arm or (served.arm if served is not None else Arm.BASELINE)
    when = now if observed_at is None else observed_at
    word = Observation(route, f"feedback/{kind}/{request_id}", chosen, when, thumbs=thumbs, task_success=task_success)
    return observe(store, [word], now)[0]


def _read(item: Any, known: set[str], sees: Callable[[str], bool], now: float) -> Observation | CanaryError:
    try:
        if not isinstance(item, dict):
            raise RequestError("an observation must be a JSON object", remedy="Send one object, an array of them, or one a line.")
        route = item.get("route")
        if not isinstance(route, str) or not ROUTE.fullmatch(route):
            raise RequestError("route must be the name of a route", where="route", remedy="Say which route served the request.")
        if not sees(route):
            raise ForbiddenError("the key is not for this route", where="route", remedy="Use a key for it.")
        if route not in known:
            raise NotFoundError("there is no rollout for this route", where="route", remedy="Apply a policy first.")
        found = read_observation(item, route)
        require_past(found, now)
    except UsageError as error:
        return error
    return found


def _decoded(part: bytes, where: str) -> Any:
    try:
        return json.loads(part.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise RequestError("is not JSON", where=where, remedy="Send JSON in UTF-8, without NaN or infinities.") from None


def _refuse(name: str) -> None:
    raise ValueError(name)


def _too_many(count: int) -> RequestError:
    return RequestError(f"the batch has {count} observations", remedy=f"Send at most {MAX_BATCH} at a time.")
