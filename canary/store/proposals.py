"""Policies that wait for a second person: one per route, the newest; it decides nothing until it is approved."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, DateTime, Identity, Table, Text, UniqueConstraint, delete, select
from sqlalchemy.dialects.postgresql import insert

from canary.flow.ports import Proposal
from canary.store.packing import moment, scrub
from canary.store.tables import metadata

proposals = Table(
    "proposals",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("route", Text, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("asked_at", DateTime(timezone=True), nullable=False),
    UniqueConstraint("route"),
)


class Proposals:
    """`ProposalStore` on Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, route: str) -> Proposal | None:
        """The route's open proposal."""
        row = self._connection.execute(select(proposals).where(proposals.c.route == route)).first()
        return None if row is None else Proposal(row.route, row.content_hash, row.text, row.author, row.asked_at.timestamp())

    def put(self, proposal: Proposal) -> None:
        """Make it the route's only proposal."""
        values = {
            "route": proposal.route,
            "content_hash": proposal.content_hash,
            "text": proposal.text,
            "author": scrub(proposal.author),
            "asked_at": moment(proposal.asked_at),
        }
        statement = insert(proposals).values(values)
        self._connection.execute(statement.on_conflict_do_update(index_elements=["route"], set_=values))

    def drop(self, route: str) -> None:
        """Forget the route's proposal; none is fine."""
        self._connection.execute(delete(proposals).where(proposals.c.route == route))
