"""Policies: reading what decides about a route, and making another one decide."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from canary.api.deps import Api, Expecting, actor_of, caller_of, matches, page, place_of, tag
from canary.api.schemas import PAGE, WRITING, Approval, Cursor, Limit, PolicyText, RouteName, problems
from canary.domain.errors import NotFoundError, PolicyError, PreconditionError, PreconditionRequiredError
from canary.domain.policy import Policy
from canary.domain.policy_diff import compare
from canary.domain.rollout import Rollout
from canary.flow.attempt import pinned_policy, rollout_of
from canary.flow.ports import Store, Transaction
from canary.flow.tools import reports
from canary.flow.tools.apply import apply_policy, approve_policy, plain
from canary.flow.tools.policy_files import load_text


def router(api: Api) -> APIRouter:
    """Reading and applying policies."""
    made = APIRouter(prefix="/api/v1/policies", tags=["policies"])
    _reading(made, api)
    _writing(made, api)
    return made


def _reading(made: APIRouter, api: Api) -> None:
    @made.get("", responses=problems())
    def listed(request: Request, limit: Limit = PAGE, cursor: Cursor = None) -> dict[str, object]:
        """Every route's current policy by content hash."""
        after = place_of(cursor, "policies", str)
        with api.store.transaction() as tx:
            known = sorted(rollout.route for rollout in tx.rollouts.list())
            routes = [r for r in known if caller_of(request).sees(r) and (after is None or r > after)]
            shown, following = page(routes, limit, "policies", str)
            found = [{"route": route, "content_hash": _current(tx, route)[0]} for route in shown]
        return {"policies": found, "next": following}

    @made.get("/{route}", responses=problems())
    def one(route: RouteName, response: Response) -> dict[str, object]:
        """One route's current policy; `ETag` is for If-Match."""
        with api.store.transaction() as tx:
            content_hash, text = _current(tx, route)
        response.headers["ETag"] = tag(content_hash)
        return {"route": route, "content_hash": content_hash, "text": text}

    @made.get("/{route}/proposal", responses=problems())
    def proposal(route: RouteName) -> dict[str, object]:
        """The policy that waits for a second person, with what it changes."""
        with api.store.transaction() as tx:
            rollout, found = rollout_of(tx, route), tx.proposals.get(route)
            if found is None:
                raise NotFoundError("no policy waits for approval", where="/route", remedy="Nothing to approve.")
            changes = compare(pinned_policy(tx, rollout), parsed(route, found.text))
        return {
            "route": route,
            "content_hash": found.content_hash,
            "text": found.text,
            "author": found.author,
            "asked_at": reports.rfc3339(found.asked_at),
            "changes": reports.finite(plain(changes)),
        }

    @made.post("/{route}/diff", responses=problems(*WRITING))
    def diff(route: RouteName, policy: PolicyText) -> dict[str, object]:
        """What a policy would change, field by field: looser, stricter or neutral. Nothing is stored."""
        read = parsed(route, policy.text)
        with api.store.transaction() as tx:
            found = compare(pinned_policy(tx, rollout_of(tx, route)), read)
        changes = reports.finite(plain(found))
        return {"content_hash": read.content_hash, "looser": found.looser, "changes": changes}


def _writing(made: APIRouter, api: Api) -> None:
    @made.put("/{route}", responses=problems(*WRITING, 412, 428))
    def put(
        route: RouteName,
        policy: PolicyText,
        request: Request,
        response: Response,
        if_match: Annotated[str | None, Header()] = None,
        if_none_match: Annotated[str | None, Header()] = None,
    ) -> dict[str, object]:
        """Make a policy the one that decides about its route; a looser one is proposed, for somebody else to approve.

        `If-Match` names the policy that it replaces; `If-None-Match: *` says that there is none yet.
        """
        actor = actor_of(request, policy.actor)
        store = _expecting_policy(api.store, route, if_match, if_none_match)
        read = parsed(route, policy.text)
        rollout = apply_policy(store, read, policy.text, api.clock(), actor)
        api.flags.refresh()
        response.headers["ETag"] = tag(read.content_hash)
        with api.store.transaction() as tx:
            return {"content_hash": read.content_hash, "rollout": reports.summary(rollout, tx.flags.get(route))}

    @made.post("/{route}/approve", responses=problems(*WRITING))
    def approve(route: RouteName, approval: Approval, request: Request, response: Response) -> dict[str, object]:
        """Agree to the route's proposed policy, which decides from now on; nobody approves their own."""
        rollout = approve_policy(api.store, route, approval.content_hash, actor_of(request, approval.actor), api.clock())
        api.flags.refresh()
        response.headers["ETag"] = tag(rollout.policy_hash)
        with api.store.transaction() as tx:
            return {"content_hash": rollout.policy_hash, "rollout": reports.summary(rollout, tx.flags.get(route))}


def parsed(route: str, text: str) -> Policy:
    """The policy of a request, about the route of its path.

    Raises:
        PolicyError: it is not legal, or about another route.
    """
    found = load_text(text, name="policy")
    if found.route != route:
        raise PolicyError(
            f"the policy is about route {found.route!r}", where="route", remedy=f"Send it to that route, not {route}."
        )
    return found


def _current(tx: Transaction, route: str) -> tuple[str, str]:
    """Hash and text of the policy that the route's rollout pins."""
    rollout = rollout_of(tx, route)
    text = tx.policies.get(rollout.policy_hash)
    if text is None:
        raise NotFoundError("the rollout's policy is not stored", where="/route", remedy="Apply one: canary policy apply FILE.")
    return rollout.policy_hash, text


def _expecting_policy(store: Store, route: str, if_match: str | None, if_none_match: str | None) -> Expecting:
    """A store that applies a policy only over the one that the request expects."""
    if if_match is None and (if_none_match is None or if_none_match.strip() != "*"):
        raise PreconditionRequiredError(
            "the request does not say which policy it replaces",
            where="If-Match",
            remedy="Send the ETag of the policy that you saw, or `If-None-Match: *` for a new route.",
        )
    moved = PreconditionError(
        "the route's policy is not the expected one", where="If-Match", remedy="Read it again, and decide again."
    )

    def check(tx: Transaction, rollout: Rollout | None) -> None:
        current = None if rollout is None else tag(rollout.policy_hash)
        if (if_match is None and current is not None) or (if_match is not None and not matches(if_match, current)):
            raise moved

    return Expecting(store, route, check)
