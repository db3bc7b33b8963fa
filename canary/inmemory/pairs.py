"""Stored pairs in dictionaries, and what of them may be folded: the contiguous prefix of ordinals."""

from __future__ import annotations

from itertools import islice

from canary.domain.errors import ConflictError
from canary.domain.mirrored import length_bucket
from canary.domain.pairs import Pair
from canary.flow.ports import FoldItem
from canary.inmemory.state import OPEN, Repository


class Pairs(Repository):
    def add(self, pair: Pair, now: float) -> None:
        if pair.pair_id not in self.state.leases:
            raise ConflictError("the pair was never claimed", where=f"pairs/{pair.pair_id}", remedy="Claim its prompt first.")
        self.state.pairs.setdefault(pair.pair_id, (pair, round(now, 6)))

    def get(self, pair_id: str) -> Pair | None:
        found = self.state.pairs.get(pair_id)
        return found and found[0]

    def first(self, route: str, epoch: str, attempt: int, count: int) -> list[Pair | None] | None:
        known = self.state.ordinals.get((route, epoch, attempt), ())[:count]
        states = [self.state.leases[identity].state for identity in known]
        if len(known) < count or any(state in OPEN for state in states):
            return None
        return [self.get(i) if state == "paired" else None for i, state in zip(known, states, strict=True)]

    def page(self, route: str, epoch: str, attempt: int, *, after: int, limit: int) -> list[Pair]:
        found = (self.get(identity) for identity in self.state.ordinals.get((route, epoch, attempt), ())[max(0, after + 1) :])
        return list(islice((pair for pair in found if pair is not None), limit))

    def contiguous(self, route: str, epoch: str, attempt: int, *, after: int, limit: int) -> list[FoldItem]:
        known = self.state.ordinals.get((route, epoch, attempt), ())
        items: list[FoldItem] = []
        for ordinal in range(after, min(after + limit, len(known))):
            lease = self.state.leases[known[ordinal]]
            if lease.state in OPEN:
                break
            prompt = lease.claim.prompt
            kind = (lease.claim.control, prompt.params.stratum, length_bucket(prompt.num_characters))
            if lease.state == "paired" and known[ordinal] in self.state.pairs:
                pair, stored_at = self.state.pairs[known[ordinal]]
                increments = pair.increments if pair.error is None else None
                items.append(FoldItem(ordinal, increments, pair.calibration_hash, stored_at, *kind))
            else:
                items.append(FoldItem(ordinal, None, "", lease.touched_at, *kind))
        return items

    def ids(self, route: str, epoch: str, attempt: int) -> list[str]:
        known = self.state.ordinals.get((route, epoch, attempt), ())
        return [identity for identity in known if self.state.leases[identity].state == "paired"]
