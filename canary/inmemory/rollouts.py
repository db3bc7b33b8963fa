"""Rollouts, policies and proposed policies in dictionaries."""

from __future__ import annotations

from dataclasses import replace

from canary.domain.errors import ConflictError
from canary.domain.rollout import Rollout
from canary.flow import ports
from canary.inmemory.state import Repository


class Rollouts(Repository):
    def get(self, route: str, *, lock: bool = False) -> Rollout | None:
        return self.state.rollouts.get(route)

    def list(self) -> list[Rollout]:
        return [self.state.rollouts[route] for route in sorted(self.state.rollouts)]

    def put(self, rollout: Rollout) -> None:
        stored = self.state.rollouts.get(rollout.route)
        if rollout.version != (stored.version if stored else 0) + 1:
            raise ConflictError(
                f"version {rollout.version} does not follow the stored one",
                where=f"rollouts/{rollout.route}",
                remedy="Read the rollout again and retry.",
            )
        self.state.rollouts[rollout.route] = rollout


class Policies(Repository):
    def put(self, route: str, content_hash: str, text: str, now: float) -> None:
        if self.current(route) != (content_hash, text):
            self.state.policies[len(self.state.policies)] = (route, content_hash, text)

    def current(self, route: str) -> tuple[str, str] | None:
        return next(((h, text) for r, h, text in reversed(self.state.policies.values()) if r == route), None)

    def get(self, content_hash: str) -> str | None:
        return next((text for _, h, text in reversed(self.state.policies.values()) if h == content_hash), None)

    def routes(self) -> list[str]:
        return sorted({route for route, _, _ in self.state.policies.values()})


class Proposals(Repository):
    def get(self, route: str) -> ports.Proposal | None:
        return self.state.proposals.get(route)

    def put(self, proposal: ports.Proposal) -> None:
        self.state.proposals[proposal.route] = replace(proposal, asked_at=round(proposal.asked_at, 6))

    def drop(self, route: str) -> None:
        self.state.proposals.pop(route, None)
