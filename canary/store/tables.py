"""The tables, as SQLAlchemy Core metadata that the migrations must equal (a test says so).

Whatever SQL filters or aggregates is a column; content and numbers that only code reads are packed `bytea` (`packing`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import ARRAY, TypeEngine

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Partitioned tables and the column whose day says where a row lies.
PARTITIONED = {"prompts": "received_at", "pairs": "stored_at", "observations": "received_at"}

policies = Table(
    "policies",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("route", Text, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("applied_at", DateTime(timezone=True), nullable=False),
    Index(None, "route", "id"),
    Index(None, "content_hash"),
)

# Times that come back into decisions are float8, so that they come back to the bit.
rollouts = Table(
    "rollouts",
    metadata,
    Column("route", Text, primary_key=True),
    Column("policy_hash", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("stage", Integer, nullable=False),
    Column("epoch", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("entered_at", Double, nullable=False),
    Column("baked_seconds", Double, nullable=False),
    Column("assessed_at", Double),
    Column("errors", Integer, nullable=False),
    Column("killed", Boolean, nullable=False),
    Column("reason", Text, nullable=False),
    Column("ramp_weight", Integer, nullable=False),
    *(Column(name, Double, nullable=False) for name in ("ramp_start", "ramp_end")),
    Column("version", BigInteger, nullable=False),
    Column("details", Text, nullable=False),
    CheckConstraint("state in ('pending', 'shadow', 'canary', 'full', 'held', 'rolled_back', 'archived')", name="state"),
)


def _keys(name: str) -> Table:
    """Keys that must be unique for ever, beside a table that is partitioned by day; `seq` is the order of arrival."""
    return Table(
        name,
        metadata,
        Column("seq", BigInteger, Identity(), primary_key=True),
        Column("key", LargeBinary, nullable=False),
        Column("route", Text, nullable=False),
        Column("received_at", DateTime(timezone=True), nullable=False),
        UniqueConstraint("key"),
        Index(None, "route", "seq"),
    )


# (source, request id) must be unique for ever, which a table partitioned by day cannot promise.
# `key` is a digest: a request id may be longer than an index entry, or hold what `text` cannot.
prompt_keys = _keys("prompt_keys")

prompts = Table(
    "prompts",
    metadata,
    Column("received_at", DateTime(timezone=True), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("source", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("stratum", Text, nullable=False),
    Column("temperature", Double, nullable=False),
    Column("max_tokens", BigInteger, nullable=False),
    Column("body_size", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("understood", LargeBinary, nullable=False),
    Index(None, "route", "received_at"),
    postgresql_partition_by="RANGE (received_at)",
)

# Requests seen and kept, by what is known of a request at the mirror; the mirror rate is float8, so that a window is found again
# to the bit.
mirror_counts = Table(
    "mirror_counts",
    metadata,
    Column("route", Text, primary_key=True),
    Column("rate", Double, primary_key=True),
    Column("endpoint", Text, primary_key=True),
    Column("stream", Boolean, primary_key=True),
    Column("length", BigInteger, primary_key=True, autoincrement=False),
    Column("seen", BigInteger, nullable=False),
    Column("kept", BigInteger, nullable=False),
    CheckConstraint("kept between 0 and seen", name="kept"),
)

# `stored_at` is set once, by the pair that is stored for the claim, and points at its partition. `stratum` and `length` are null
# in claims from before they were kept.
claims = Table(
    "claims",
    metadata,
    Column("pair_id", Text, primary_key=True),
    Column("route", Text, nullable=False),
    Column("epoch", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("ordinal", BigInteger, nullable=False),
    Column("control", Boolean, nullable=False),
    Column("stratum", Text),
    Column("length", BigInteger),
    Column("seq", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("token", Text),
    Column("worker", Text, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("touched_at", Double, nullable=False),
    Column("stored_at", DateTime(timezone=True)),
    UniqueConstraint("route", "epoch", "attempt", "ordinal"),
    UniqueConstraint("token"),
    Index(
        "ix_claims_open",
        "route",
        "epoch",
        "attempt",
        "ordinal",
        postgresql_where=text("state in ('leased', 'released')"),
    ),
    CheckConstraint("state in ('leased', 'released', 'paired', 'failed')", name="state"),
)


def _arm(arm: str) -> list[Column[Any]]:
    """One arm's columns; the timing's four are null together when the pair was not timed."""

    def column(name: str, kind: TypeEngine[Any], nullable: bool = False) -> Column[Any]:
        return Column(f"{arm}_{name}", kind, nullable=nullable)

    counts = ("tokens", "steps", "drafts", "draft_tokens", "accepted_tokens", "speculative_tokens", "cut")
    return [
        column("finish_reason", Text()),
        column("error", Text(), nullable=True),
        *(column(f"num_{what}", Integer()) for what in counts),
        column("ttft_seconds", Double(), nullable=True),
        column("total_seconds", Double(), nullable=True),
        column("timed_tokens", Integer(), nullable=True),
        column("timing_concurrency", Integer(), nullable=True),
        column("token_ids", LargeBinary()),
        column("text", LargeBinary()),
        column("drafted", LargeBinary()),
        column("accepted", LargeBinary()),
        column("trace", LargeBinary(), nullable=True),
        column("rows", LargeBinary(), nullable=True),
        column("request_digest", Text(), nullable=True),
        column("valid", Boolean(), nullable=True),
        column("agrees", Boolean(), nullable=True),
    ]


pairs = Table(
    "pairs",
    metadata,
    Column("stored_at", DateTime(timezone=True), primary_key=True),
    Column("pair_id", Text, primary_key=True),
    Column("packing", SmallInteger, nullable=False),
    Column("route", Text, nullable=False),
    Column("epoch", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("ordinal", BigInteger, nullable=False),
    Column("stratum", Text, nullable=False),
    Column("first", Text, nullable=False),
    Column("control", Boolean, nullable=False),
    Column("error", Text),
    Column("calibration_hash", Text, nullable=False),
    Column("increments", LargeBinary, nullable=False),
    *_arm("baseline"),
    *_arm("candidate"),
    Index(None, "route", "epoch", "attempt", "ordinal"),
    postgresql_partition_by="RANGE (stored_at)",
)

# As with prompts: (route, observation id) must be unique for ever, and `seq` is the order in which observations are folded.
observation_keys = _keys("observation_keys")

# Measures are float8 and null where they were not measured, so that they come back to the bit.
observations = Table(
    "observations",
    metadata,
    Column("received_at", DateTime(timezone=True), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("route", Text, nullable=False),
    Column("observation_id", Text, nullable=False),
    Column("arm", Text, nullable=False),
    Column("observed_at", Double, nullable=False),
    Column("finish_reason", Text),
    Column("error", Text),
    Column("ttft_seconds", Double),
    Column("seconds_per_token", Double),
    Column("num_drafts", BigInteger),
    Column("num_draft_tokens", BigInteger),
    Column("num_accepted_tokens", BigInteger),
    Column("accepted_per_position", ARRAY(BigInteger)),
    Column("valid", Boolean),
    Column("task_success", Boolean),
    Column("thumbs", SmallInteger),
    Column("memory_headroom", Double),
    Column("stage", Text),
    Column("weight", Integer),
    Column("engine", Text),
    Column("concurrency", BigInteger),
    CheckConstraint("arm in ('baseline', 'candidate')", name="arm"),
    Index(None, "route", "seq"),
    postgresql_partition_by="RANGE (received_at)",
)

# JSON as text: `jsonb` keeps numbers as decimals and refuses NaN and NUL, and this state must come back to the bit.
evidence = Table(
    "evidence",
    metadata,
    Column("route", Text, primary_key=True),
    Column("epoch", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("state", Text, nullable=False),
)

calibrations = Table(
    "calibrations",
    metadata,
    Column("route", Text, primary_key=True),
    Column("epoch", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("record", Text, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("route", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("previous", Text),
    Column("digest", Text),
    Index(None, "route", "id"),
)
