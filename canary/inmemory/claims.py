"""Leases of mirrored prompts, in dictionaries: who shadows which prompt, and at which ordinal."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

from canary.domain.rollout import Rollout
from canary.domain.traffic import pair_id
from canary.flow.ports import Claim, ControlRule, no_controls
from canary.inmemory.state import OPEN, Lease, Repository


class Claims(Repository):
    def claim(
        self,
        rollout: Rollout,
        *,
        limit: int,
        before_ordinal: int | None,
        worker: str,
        now: float,
        lease_seconds: float,
        max_retries: int,
        control: ControlRule = no_controls,
    ) -> list[Claim]:
        attempt = (rollout.route, rollout.epoch, rollout.attempt)
        known = self.state.ordinals.get(attempt, ())
        taken: list[Claim] = []
        for lease in map(self.state.leases.__getitem__, known):
            expired = lease.state == "leased" and lease.lease_until <= now
            if not expired and lease.state != "released":
                continue
            claim = replace(lease.claim, tries=lease.claim.tries + expired, token=secrets.token_hex(16))
            if claim.tries > max_retries:
                self.state.leases[claim.pair_id] = Lease(claim, "failed", now, now)
            elif len(taken) < limit:
                taken.append(claim)
        arrived = self.state.arrivals.get(rollout.route, ())
        end = min(len(known) + limit - len(taken), len(arrived), len(arrived) if before_ordinal is None else before_ordinal)
        for ordinal in range(len(known), end):
            prompt = arrived[ordinal]
            identity = pair_id(prompt.source, prompt.request_id, *attempt)
            token = secrets.token_hex(16)
            taken.append(Claim(identity, *attempt, ordinal, 0, token, prompt, control(ordinal, identity)))
            known += (identity,)
        self.state.ordinals[attempt] = known
        for claim in taken:
            self.state.leases[claim.pair_id] = Lease(claim, "leased", now + lease_seconds, now)
        return taken

    def heartbeat(self, tokens: Sequence[str], now: float, lease_seconds: float) -> int:
        return self._change(lambda e: e.claim.token in tokens, lambda e: replace(e, lease_until=now + lease_seconds))

    def release(self, tokens: Sequence[str]) -> None:
        self._change(lambda e: e.claim.token in tokens, lambda e: replace(e, state="released"))

    def expire_all(self) -> int:
        return self._change(lambda e: True, lambda e: replace(e, lease_until=float("-inf")))

    def finish(self, claim: Claim, *, failed: bool) -> bool:
        state = "failed" if failed else "paired"
        return self._change(lambda e: e.claim.token == claim.token, lambda e: replace(e, state=state)) == 1

    def given(self, route: str, epoch: str, attempt: int) -> int:
        return len(self.state.ordinals.get((route, epoch, attempt), ()))

    def open_count(self, route: str, epoch: str, attempt: int) -> int:
        known = self.state.ordinals.get((route, epoch, attempt), ())
        return sum(self.state.leases[identity].state in OPEN for identity in known)

    def _change(self, chosen: Callable[[Lease], bool], change: Callable[[Lease], Lease]) -> int:
        """Change the running leases that are chosen; returns how many."""
        found = {k: e for k, e in self.state.leases.items() if e.state == "leased" and chosen(e)}
        self.state.leases.update({k: change(e) for k, e in found.items()})
        return len(found)
