"""Live observations, and what a structured route's arms answered."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ARM_COLUMNS = (("request_digest", sa.Text), ("valid", sa.Boolean), ("agrees", sa.Boolean))


def upgrade() -> None:
    for arm in ("baseline", "candidate"):
        for name, kind in ARM_COLUMNS:
            op.add_column("pairs", sa.Column(f"{arm}_{name}", kind(), nullable=True))
    op.create_table(
        "observation_keys",
        sa.Column("seq", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_observation_keys")),
        sa.UniqueConstraint("key", name=op.f("uq_observation_keys_key")),
    )
    op.create_index(op.f("ix_observation_keys_route_seq"), "observation_keys", ["route", "seq"])
    op.create_table(
        "observations",
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        *_columns(sa.Text, "route", "observation_id", "arm", nullable=False),
        *_columns(sa.Double, "observed_at", nullable=False),
        *_columns(sa.Text, "finish_reason", "error"),
        *_columns(sa.Double, "ttft_seconds", "seconds_per_token"),
        *_columns(sa.BigInteger, "num_drafts", "num_draft_tokens", "num_accepted_tokens"),
        *_columns(sa.Boolean, "valid", "task_success"),
        *_columns(sa.SmallInteger, "thumbs"),
        *_columns(sa.Double, "memory_headroom"),
        *_columns(sa.Text, "stage"),
        *_columns(sa.Integer, "weight"),
        *_columns(sa.Text, "engine"),
        sa.CheckConstraint("arm in ('baseline', 'candidate')", name=op.f("ck_observations_arm")),
        sa.PrimaryKeyConstraint("received_at", "seq", name=op.f("pk_observations")),
        postgresql_partition_by="RANGE (received_at)",
    )
    op.create_index(op.f("ix_observations_route_seq"), "observations", ["route", "seq"])
    op.execute("create table observations_default partition of observations default")


def downgrade() -> None:
    op.drop_table("observations")
    op.drop_table("observation_keys")
    for arm in ("baseline", "candidate"):
        for name, _ in ARM_COLUMNS:
            op.drop_column("pairs", f"{arm}_{name}")


def _columns(kind: type[sa.types.TypeEngine[Any]], *names: str, nullable: bool = True) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind(), nullable=nullable) for name in names]
