"""Leases on prompts: who runs which ordinal, for how long, and how it ended.

Ordinals are dense within an attempt and never change hands; a lease may, and then its token says so.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, insert, or_, select, update

from canary.domain.mirrored import length_bucket
from canary.domain.rollout import Rollout
from canary.domain.traffic import Prompt, pair_id
from canary.flow.ports import Claim, ControlRule, no_controls
from canary.store.packing import unpack_prompt
from canary.store.tables import claims, prompt_keys, prompts, rollouts

OPEN = ("leased", "released")


def of_attempt(route: str, epoch: str, attempt: int) -> ColumnElement[bool]:
    """The claims of one attempt."""
    return and_(claims.c.route == route, claims.c.epoch == epoch, claims.c.attempt == attempt)


class Claims:
    """`ClaimStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
        """Lease pairs: what expired or was released first, then new prompts in order of arrival (see the port).

        A prompt whose content is gone (retention) cannot be run again, so its open claim becomes a tombstone too.
        """
        self._connection.execute(select(rollouts.c.route).where(rollouts.c.route == rollout.route).with_for_update())
        lease = {"worker": worker, "lease_until": now + lease_seconds, "touched_at": now}
        again = self._take_again(rollout, limit, now, max_retries, lease)
        return again + self._take_new(rollout, limit - len(again), before_ordinal, lease, control)

    def heartbeat(self, tokens: Sequence[str], now: float, lease_seconds: float) -> int:
        """Extend the leases that are still ours; returns how many those are."""
        return self._connection.execute(
            update(claims).where(claims.c.token.in_(tokens), claims.c.state == "leased").values(lease_until=now + lease_seconds)
        ).rowcount

    def release(self, tokens: Sequence[str]) -> None:
        """Give leases back at once; no retry is counted."""
        self._connection.execute(
            update(claims).where(claims.c.token.in_(tokens), claims.c.state == "leased").values(state="released", token=None)
        )

    def expire_all(self) -> int:
        """End every lease now; each counts as a retry, as any lease does that ran out."""
        return self._connection.execute(
            update(claims).where(claims.c.state == "leased").values(lease_until=float("-inf"))
        ).rowcount

    def finish(self, claim: Claim, *, failed: bool) -> bool:
        """Mark the claim paired or failed; False if the lease was lost meanwhile."""
        done = self._connection.execute(
            update(claims)
            .where(claims.c.pair_id == claim.pair_id, claims.c.token == claim.token, claims.c.state == "leased")
            .values(state="failed" if failed else "paired", token=None)
        )
        return done.rowcount == 1

    def given(self, route: str, epoch: str, attempt: int) -> int:
        """Ordinals that the attempt has given so far, which is also the next one."""
        newest = select(claims.c.ordinal).where(of_attempt(route, epoch, attempt)).order_by(claims.c.ordinal.desc()).limit(1)
        last = self._connection.scalars(newest).first()
        return 0 if last is None else last + 1

    def open_count(self, route: str, epoch: str, attempt: int) -> int:
        """Claims that are neither paired nor failed."""
        statement = select(func.count()).where(of_attempt(route, epoch, attempt), claims.c.state.in_(OPEN))
        return self._connection.scalars(statement).one()

    def _take_again(self, rollout: Rollout, limit: int, now: float, max_retries: int, lease: Mapping[str, Any]) -> list[Claim]:
        """Lease what expired or was released, in ordinal order, and bury what has run out of retries."""
        content = prompts.join(
            prompt_keys, and_(prompts.c.seq == prompt_keys.c.seq, prompts.c.received_at == prompt_keys.c.received_at)
        )
        due = self._connection.execute(
            select(claims, prompts.c.body, prompts.c.understood)
            .select_from(claims.outerjoin(content, prompt_keys.c.seq == claims.c.seq))
            .where(
                of_attempt(rollout.route, rollout.epoch, rollout.attempt),
                or_(and_(claims.c.state == "leased", claims.c.lease_until <= now), claims.c.state == "released"),
            )
            .order_by(claims.c.ordinal)
        ).mappings()
        taken: list[Claim] = []
        buried: list[dict[str, Any]] = []
        for row in due:
            tries = row["tries"] + (row["state"] == "leased")
            if tries > max_retries or row["body"] is None:
                buried.append({"id": row["pair_id"], "tries": tries, "touched_at": lease["touched_at"]})
            elif len(taken) < limit:
                claim = _claim(rollout, row["ordinal"], tries, unpack_prompt(row["body"], row["understood"]))
                taken.append(replace(claim, control=row["control"]))
        where = update(claims).where(claims.c.pair_id == bindparam("id"))
        if buried:
            self._connection.execute(where.values(state="failed", token=None), buried)
        if taken:
            leased = [{"id": c.pair_id, "tries": c.tries, "token": c.token, **lease} for c in taken]
            self._connection.execute(where.values(state="leased"), leased)
        return taken

    def _take_new(
        self, rollout: Rollout, limit: int, before_ordinal: int | None, lease: Mapping[str, Any], control: ControlRule
    ) -> list[Claim]:
        """Give the next ordinals to the prompts that arrived after the last one claimed."""
        last = self._connection.execute(
            select(claims.c.ordinal, claims.c.seq)
            .where(of_attempt(rollout.route, rollout.epoch, rollout.attempt))
            .order_by(claims.c.ordinal.desc())
            .limit(1)
        ).first()
        ordinal, seq = (last.ordinal + 1, last.seq) if last else (0, 0)
        if before_ordinal is not None:
            limit = min(limit, before_ordinal - ordinal)
        if limit <= 0:
            return []
        found = self._connection.execute(
            select(prompts.c.seq, prompts.c.body, prompts.c.understood)
            .join(prompt_keys, and_(prompts.c.seq == prompt_keys.c.seq, prompts.c.received_at == prompt_keys.c.received_at))
            .where(prompt_keys.c.route == rollout.route, prompt_keys.c.seq > seq)
            .order_by(prompt_keys.c.seq)
            .limit(limit)
        ).all()
        plain = [_claim(rollout, ordinal + i, 0, unpack_prompt(row.body, row.understood)) for i, row in enumerate(found)]
        taken = [replace(claim, control=control(claim.ordinal, claim.pair_id)) for claim in plain]
        if taken:
            rows = [
                {
                    "pair_id": claim.pair_id,
                    "route": claim.route,
                    "epoch": claim.epoch,
                    "attempt": claim.attempt,
                    "ordinal": claim.ordinal,
                    "control": claim.control,
                    "stratum": claim.prompt.params.stratum.value,
                    "length": length_bucket(claim.prompt.num_characters),
                    "seq": row.seq,
                    "state": "leased",
                    "tries": 0,
                    "token": claim.token,
                    **lease,
                }
                for claim, row in zip(taken, found, strict=True)
            ]
            self._connection.execute(insert(claims), rows)
        return taken


def _claim(rollout: Rollout, ordinal: int, tries: int, prompt: Prompt) -> Claim:
    return Claim(
        pair_id=pair_id(prompt.source, prompt.request_id, rollout.route, rollout.epoch, rollout.attempt),
        route=rollout.route,
        epoch=rollout.epoch,
        attempt=rollout.attempt,
        ordinal=ordinal,
        tries=tries,
        token=secrets.token_hex(16),
        prompt=prompt,
    )
