"""Mirrored prompts: kept byte for byte, once per (source, request id), in order of arrival.

A repeat is a no-op, never an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from sqlalchemy import Connection, and_, func, select, text

from canary.domain.traffic import Prompt
from canary.store.packing import deflate, moment, pack_understood, prompt_key, scrub, unpack_prompt
from canary.store.tables import claims, prompt_keys, prompts

# Held to the end of the transaction, so that sequence numbers become visible in their own order: a claim may then look only
# beyond the last one that it has seen.
INGEST_LOCK = 0x43414E4152590001
MAX_BIGINT = 2**63 - 1

COLUMNS = {
    "place": "int4",
    "key": "bytea",
    "received_at": "timestamptz",
    "source": "text",
    "request_id": "text",
    "route": "text",
    "endpoint": "text",
    "stratum": "text",
    "temperature": "float8",
    "max_tokens": "int8",
    "body_size": "int8",
    "body": "bytea",
    "understood": "bytea",
}
_KEPT = ", ".join(name for name in COLUMNS if name not in ("place", "key"))

CREATE = text(
    "create temporary table if not exists incoming_prompts"
    f" ({', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())}) on commit delete rows"
)
COPY = f"copy pg_temp.incoming_prompts ({', '.join(COLUMNS)}) from stdin (format binary)"
INSERT = text(
    "with fresh as ("
    " insert into prompt_keys (key, route, received_at)"
    " select key, route, received_at from pg_temp.incoming_prompts order by place"
    " on conflict (key) do nothing returning seq, key"
    "), kept as ("
    f" insert into prompts (seq, {_KEPT})"
    f" select seq, {_KEPT} from pg_temp.incoming_prompts join fresh using (key)"
    ") select place from pg_temp.incoming_prompts join fresh using (key)"
)
EMPTY = text("delete from pg_temp.incoming_prompts")


class Prompts:
    """`PromptStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add_many(self, prompts: Sequence[Prompt], now: float) -> list[bool]:
        """Insert what is new by (source, request id) in one COPY and one statement; True where it was new."""
        first: dict[bytes, int] = {}
        for place, prompt in enumerate(prompts):
            first.setdefault(prompt_key(prompt.source, prompt.request_id), place)
        if not first:
            return []
        self._connection.execute(select(func.pg_advisory_xact_lock(INGEST_LOCK)))
        self._connection.execute(CREATE)
        self._copy({place: (key, prompts[place]) for key, place in first.items()}, now)
        fresh = set(self._connection.scalars(INSERT))
        self._connection.execute(EMPTY)
        return [place in fresh for place in range(len(prompts))]

    def count(self, route: str) -> int:
        """How many prompts the route ever got."""
        statement = select(func.count()).select_from(prompt_keys).where(prompt_keys.c.route == route)
        return self._connection.scalars(statement).one()

    def since(self, route: str, at: float, most: int) -> int:
        """How many of the route's prompts arrived at or after a moment, counted up to `most`."""
        # The partitioned table has the index for this, and only the partitions of those days are read.
        arrived = and_(prompts.c.route == route, prompts.c.received_at >= moment(at))
        newest = select(prompts.c.seq).where(arrived).limit(most).subquery()
        return self._connection.scalars(select(func.count()).select_from(newest)).one()

    def recent(self, route: str, limit: int) -> list[Prompt]:
        """The route's newest prompts whose content is still kept, in order of arrival."""
        content = and_(prompts.c.seq == prompt_keys.c.seq, prompts.c.received_at == prompt_keys.c.received_at)
        found = self._connection.execute(
            select(prompts.c.body, prompts.c.understood)
            .join(prompt_keys, content)
            .where(prompt_keys.c.route == route)
            .order_by(prompt_keys.c.seq.desc())
            .limit(limit)
        ).all()
        return [unpack_prompt(row.body, row.understood) for row in reversed(found)]

    def of_pair(self, pair_id: str) -> Prompt | None:
        """What both arms of a pair answered; None where its content is no longer kept."""
        content = and_(prompts.c.seq == prompt_keys.c.seq, prompts.c.received_at == prompt_keys.c.received_at)
        row = self._connection.execute(
            select(prompts.c.body, prompts.c.understood)
            .join(prompt_keys, content)
            .join(claims, claims.c.seq == prompt_keys.c.seq)
            .where(claims.c.pair_id == pair_id)
        ).first()
        return None if row is None else unpack_prompt(row.body, row.understood)

    def _copy(self, rows: dict[int, tuple[bytes, Prompt]], now: float) -> None:
        driver = self._connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        received_at = moment(now)
        with driver.cursor() as cursor, cursor.copy(COPY) as copy:
            copy.set_types(list(COLUMNS.values()))
            for place, (key, prompt) in rows.items():
                copy.write_row(
                    (
                        place,
                        key,
                        received_at,
                        scrub(prompt.source),
                        scrub(prompt.request_id),
                        prompt.route,
                        prompt.endpoint,
                        prompt.params.stratum.value,
                        prompt.params.temperature,
                        min(prompt.params.max_tokens, MAX_BIGINT),
                        len(prompt.body),
                        deflate(prompt.body),
                        pack_understood(prompt),
                    )
                )
