"""Who may do what: roles, actions, and the one pure decision that every request is held to.

It never looks a key up and never reads a clock; whatever is not allowed here by name is refused.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from canary.domain.errors import CanaryError, ForbiddenError, UnauthorizedError


class Role(StrEnum):
    """What a key may do at most; each has all of the one before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"


class Action(StrEnum):
    """What an endpoint does, as far as permission is concerned."""

    OPEN = "open"  # anybody: liveness, the API's document, schemas
    PEER = "peer"  # another replica, which proves itself to the endpoint
    FLAGS = "flags"  # read and resolve flags
    READ = "read"  # rollouts, verdicts, evidence, policies, and the numbers of pairs
    AUDIT = "audit"  # read who did what
    CONTENT = "content"  # read what was answered
    INGEST = "ingest"  # report observations and feedback
    KILL = "kill"  # turn a kill switch on
    OPERATE = "operate"  # unkill, pause, resume, abort, retry, run jobs
    POLICY = "policy"  # apply a policy
    APPROVE = "approve"  # approve or reject a stage or a policy
    KEYS = "keys"  # create, rotate and revoke keys


class Reach(StrEnum):
    """How much of the service one endpoint touches; a key limited to routes is held to it."""

    ROUTE = "route"  # the one that its path names
    LISTED = "listed"  # several, of which it leaves out what the key may not see
    WHOLE = "whole"  # everything, so that a limited key is refused


ANYBODY = frozenset({Action.OPEN, Action.PEER})
_VIEWER = frozenset({Action.FLAGS, Action.READ, Action.AUDIT})
_OPERATOR = _VIEWER | {Action.INGEST, Action.KILL, Action.OPERATE, Action.POLICY, Action.CONTENT}
_APPROVER = _OPERATOR | {Action.APPROVE}
MAY: Mapping[Role, frozenset[Action]] = {
    Role.VIEWER: _VIEWER,
    Role.OPERATOR: _OPERATOR,
    Role.APPROVER: _APPROVER,
    Role.ADMIN: _APPROVER | {Action.KEYS},
}

# What was asked and answered is people's own text: no role reads it unless the key's scopes name it.
NAMED_ONLY = frozenset({Action.CONTENT})


@dataclass(frozen=True, slots=True)
class Key:
    """One API key; its secret is not here and cannot be had from here.

    Args:
        key_id: public part of the key, shown in listings.
        digest: SHA-256 of the whole key, in hex. A key is 256 random bits, so that a slow hash would add nothing.
        owner: the person or service that holds it; the actor of whatever is done with it.
        scopes: the only actions of its role that it may do; empty for all of them but those of `NAMED_ONLY`.
        routes: the only routes that it may touch; empty for all.
        created_at, expires_at, revoked_at: seconds since the epoch; None for never.
    """

    key_id: str
    digest: str
    owner: str
    role: Role
    scopes: tuple[Action, ...] = ()
    routes: tuple[str, ...] = ()
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None

    @property
    def actions(self) -> frozenset[Action]:
        """Everything that the key may do."""
        allowed = MAY[self.role]
        return allowed & frozenset(self.scopes) if self.scopes else allowed - NAMED_ONLY

    def sees(self, route: str) -> bool:
        """Whether the key may touch the route."""
        return not self.routes or route in self.routes

    def active(self, now: float) -> bool:
        """Whether the key still opens anything."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is asking.

    Args:
        key: None where the service runs without keys, on this machine only.
    """

    key: Key | None = None

    @property
    def owner(self) -> str | None:
        return None if self.key is None else self.key.owner

    def sees(self, route: str) -> bool:
        """Whether the caller may touch the route."""
        return self.key is None or self.key.sees(route)

    def may(self, action: Action) -> bool:
        """Whether the caller may do this to the routes that it sees."""
        return action in ANYBODY or self.key is None or action in self.key.actions


NOBODY = Caller()

# Actors that say where an order came from and not who gave it.
NAMELESS = frozenset({"cli", "scheduler", "policy", "worker", "break-glass", "unknown user", "anybody on this machine"})


def person(name: str) -> str:
    """A person's name as it is compared: `Ann`, `ann ` and full-width letters of it are one person."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def refusal(key: Key | None, action: Action, reach: Reach, route: str | None, now: float) -> CanaryError | None:
    """Why a request is refused; None where it is allowed.

    Args:
        key: what the request showed, as it is known here; None for none or an unknown one.
        route: the one that an endpoint with `Reach.ROUTE` is about.
        now: seconds since the epoch.
    """
    if action in ANYBODY:
        return None
    if key is None:
        return UnauthorizedError("a known API key is needed", remedy="Send `Authorization: Bearer KEY` or `X-API-Key: KEY`.")
    if not key.active(now):
        return UnauthorizedError(f"key {key.key_id} is revoked or expired", remedy="Ask an admin: canary keys create or rotate.")
    if action not in key.actions:
        return ForbiddenError(
            f"key {key.key_id} (role {key.role}) may not `{action}`", remedy=f"Use a key that may: {_roles(action)}."
        )
    if reach is Reach.WHOLE and key.routes:
        return ForbiddenError(f"key {key.key_id} is limited to named routes", remedy="Use a key for all routes.")
    if reach is Reach.ROUTE and (route is None or not key.sees(route)):
        return ForbiddenError(f"key {key.key_id} is not for this route", where="/route", remedy="Use a key for it.")
    return None


def _roles(action: Action) -> str:
    """Which roles may do it, for people."""
    named = " whose scopes name it" if action in NAMED_ONLY else ""
    return ", ".join(role for role, actions in MAY.items() if action in actions) + named
