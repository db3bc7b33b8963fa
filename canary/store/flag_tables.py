"""The tables of flags, their pins and the kill switch, beside the others (`tables`) and in the same metadata."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Double, Identity, Index, Integer, SmallInteger, Table, Text
from sqlalchemy import UniqueConstraint as Unique

from canary.store.tables import metadata

# `details` is JSON as text: what only code reads.
flags = Table(
    "flags",
    metadata,
    Column("route", Text, primary_key=True),
    Column("weight", Integer, nullable=False),
    Column("salt", Text, nullable=False),
    Column("killed", Boolean, nullable=False),
    Column("kill_reason", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("details", Text, nullable=False),
    CheckConstraint("weight between 0 and 10000", name="weight"),
)

# One row; every write of a flag or a kill order raises it, so writers queue here and versions follow the order of commits.
flag_versions = Table(
    "flag_versions",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)

# What a person ordered; the flag's `details` carry those in force.
pins = Table(
    "pins",
    metadata,
    Column("route", Text, primary_key=True),
    Column("unit", Text, primary_key=True),
    Column("variant", Text, nullable=False),
    Column("epoch", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("pinned_at", Double, nullable=False),
    Column("expires_at", Double),
    CheckConstraint("variant in ('baseline', 'candidate')", name="variant"),
)

kill_orders = Table(
    "kill_orders",
    metadata,
    Column("seq", BigInteger, Identity(), primary_key=True),
    Column("order_id", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("act", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("undoes", Text, nullable=False),
    CheckConstraint("act in ('kill', 'unkill')", name="act"),
    Unique("order_id"),
    Index(None, "scope", "seq"),
)
