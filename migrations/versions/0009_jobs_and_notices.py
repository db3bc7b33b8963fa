"""Webhook notices, job runs, paused jobs, and the terms of the scheduler's leader."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "notices",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("notice_id", "target", "event", "route", "body")),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.CheckConstraint("state in ('pending', 'sent', 'dead')", name=op.f("ck_notices_state")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_notices")),
        sa.UniqueConstraint("notice_id", name=op.f("uq_notices_notice_id")),
    )
    op.create_index(op.f("ix_notices_state_due_at"), "notices", ["state", "due_at"], unique=False)
    op.create_table(
        "job_runs",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("outcome", "actor", "detail")),
        sa.CheckConstraint("outcome in ('done', 'failed')", name=op.f("ck_job_runs_outcome")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_job_runs")),
    )
    op.create_index(op.f("ix_job_runs_job_seq"), "job_runs", ["job", "seq"], unique=False)
    op.create_table(
        "job_states",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_job_states")),
    )
    op.create_table(
        "leaders",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leaders")),
    )


def downgrade() -> None:
    for table in ("leaders", "job_states", "job_runs", "notices"):
        op.drop_table(table)
