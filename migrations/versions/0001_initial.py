"""The first schema: policies, rollouts, flags, prompts, claims, pairs, evidence and the audit log."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "policies",
    "rollouts",
    "flags",
    "flag_versions",
    "prompt_keys",
    "prompts",
    "claims",
    "pairs",
    "evidence",
    "calibrations",
    "audit",
)

# The audit log is the record of who moved traffic: the database itself refuses to change it.
APPEND_ONLY = """
create function refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'the audit log is append-only' using errcode = 'object_not_in_prerequisite_state';
end $$;
create trigger audit_append_only before update or delete on audit for each row execute function refuse_change();
create trigger audit_no_truncate before truncate on audit for each statement execute function refuse_change();
"""


def upgrade() -> None:
    _control()
    _traffic()
    _claims()
    _pairs()
    _evidence()
    op.execute("insert into flag_versions (id, version) values (1, 0)")
    op.execute("create table prompts_default partition of prompts default")
    op.execute("create table pairs_default partition of pairs default")
    op.execute(APPEND_ONLY)


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
    op.execute("drop function refuse_change()")


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _integers(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Integer(), nullable=False) for name in names]


def _moment(name: str, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _identity(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), sa.Identity(), nullable=False)


def _control() -> None:
    op.create_table(
        "policies",
        _identity("id"),
        *_texts("route", "content_hash", "text"),
        _moment("applied_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policies")),
    )
    op.create_index(op.f("ix_policies_route_id"), "policies", ["route", "id"])
    op.create_index(op.f("ix_policies_content_hash"), "policies", ["content_hash"])
    op.create_table(
        "rollouts",
        *_texts("route", "policy_hash", "state"),
        *_integers("stage"),
        *_texts("epoch"),
        *_integers("attempt"),
        sa.Column("entered_at", sa.Double(), nullable=False),
        sa.Column("baked_seconds", sa.Double(), nullable=False),
        sa.Column("assessed_at", sa.Double()),
        *_integers("errors"),
        sa.Column("killed", sa.Boolean(), nullable=False),
        *_texts("reason"),
        *_integers("ramp_weight"),
        sa.Column("ramp_start", sa.Double(), nullable=False),
        sa.Column("ramp_end", sa.Double(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "state in ('pending', 'shadow', 'canary', 'full', 'held', 'rolled_back', 'archived')",
            name=op.f("ck_rollouts_state"),
        ),
        sa.PrimaryKeyConstraint("route", name=op.f("pk_rollouts")),
    )
    op.create_table(
        "flags",
        *_texts("route"),
        *_integers("weight"),
        *_texts("salt"),
        sa.Column("killed", sa.Boolean(), nullable=False),
        *_texts("kill_reason", "stage"),
        sa.CheckConstraint("weight between 0 and 10000", name=op.f("ck_flags_weight")),
        sa.PrimaryKeyConstraint("route", name=op.f("pk_flags")),
    )
    op.create_table(
        "flag_versions",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_flag_versions_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_flag_versions")),
    )


def _traffic() -> None:
    op.create_table(
        "prompt_keys",
        _identity("seq"),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        *_texts("route"),
        _moment("received_at"),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_prompt_keys")),
        sa.UniqueConstraint("key", name=op.f("uq_prompt_keys_key")),
    )
    op.create_index(op.f("ix_prompt_keys_route_seq"), "prompt_keys", ["route", "seq"])
    op.create_table(
        "prompts",
        _moment("received_at"),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        *_texts("source", "request_id", "route", "endpoint", "stratum"),
        sa.Column("temperature", sa.Double(), nullable=False),
        sa.Column("max_tokens", sa.BigInteger(), nullable=False),
        sa.Column("body_size", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("understood", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("received_at", "seq", name=op.f("pk_prompts")),
        postgresql_partition_by="RANGE (received_at)",
    )
    op.create_index(op.f("ix_prompts_route_received_at"), "prompts", ["route", "received_at"])


def _claims() -> None:
    ordinal = ["route", "epoch", "attempt", "ordinal"]
    op.create_table(
        "claims",
        *_texts("pair_id", "route", "epoch"),
        *_integers("attempt"),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        *_texts("state"),
        *_integers("tries"),
        sa.Column("token", sa.Text()),
        *_texts("worker"),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("touched_at", sa.Double(), nullable=False),
        _moment("stored_at", nullable=True),
        sa.CheckConstraint("state in ('leased', 'released', 'paired', 'failed')", name=op.f("ck_claims_state")),
        sa.PrimaryKeyConstraint("pair_id", name=op.f("pk_claims")),
        sa.UniqueConstraint(*ordinal, name=op.f("uq_claims_route_epoch_attempt_ordinal")),
        sa.UniqueConstraint("token", name=op.f("uq_claims_token")),
    )
    op.create_index("ix_claims_open", "claims", ordinal, postgresql_where=sa.text("state in ('leased', 'released')"))


def _arm(arm: str) -> list[sa.Column[Any]]:
    counts = ("tokens", "steps", "drafts", "draft_tokens", "accepted_tokens", "speculative_tokens", "cut")
    return [
        sa.Column(f"{arm}_finish_reason", sa.Text(), nullable=False),
        sa.Column(f"{arm}_error", sa.Text()),
        *_integers(*(f"{arm}_num_{what}" for what in counts)),
        sa.Column(f"{arm}_ttft_seconds", sa.Double()),
        sa.Column(f"{arm}_total_seconds", sa.Double()),
        sa.Column(f"{arm}_timed_tokens", sa.Integer()),
        *(sa.Column(f"{arm}_{what}", sa.LargeBinary(), nullable=False) for what in ("token_ids", "text", "drafted", "accepted")),
        sa.Column(f"{arm}_trace", sa.LargeBinary()),
        sa.Column(f"{arm}_rows", sa.LargeBinary()),
    ]


def _pairs() -> None:
    op.create_table(
        "pairs",
        _moment("stored_at"),
        *_texts("pair_id"),
        sa.Column("packing", sa.SmallInteger(), nullable=False),
        *_texts("route", "epoch"),
        *_integers("attempt"),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        *_texts("stratum", "first"),
        sa.Column("error", sa.Text()),
        *_texts("calibration_hash"),
        sa.Column("increments", sa.LargeBinary(), nullable=False),
        *_arm("baseline"),
        *_arm("candidate"),
        sa.PrimaryKeyConstraint("stored_at", "pair_id", name=op.f("pk_pairs")),
        postgresql_partition_by="RANGE (stored_at)",
    )
    op.create_index(op.f("ix_pairs_route_epoch_attempt_ordinal"), "pairs", ["route", "epoch", "attempt", "ordinal"])


def _evidence() -> None:
    for table, column in (("evidence", "state"), ("calibrations", "record")):
        op.create_table(
            table,
            *_texts("route", "epoch"),
            *_integers("attempt"),
            *_texts(column),
            sa.PrimaryKeyConstraint("route", "epoch", "attempt", name=op.f(f"pk_{table}")),
        )
    op.create_table(
        "audit",
        _identity("id"),
        *_texts("route", "kind", "actor", "body"),
        _moment("at"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_route_id"), "audit", ["route", "id"])
