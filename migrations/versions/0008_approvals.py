"""Rollouts remember their cool-down and approvals; a looser policy waits for a second person."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("details", sa.Text(), nullable=False, server_default="{}"))
    op.alter_column("rollouts", "details", server_default=None)
    op.create_table(
        "proposals",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_proposals")),
        sa.UniqueConstraint("route", name=op.f("uq_proposals_route")),
    )


def downgrade() -> None:
    op.drop_table("proposals")
    op.drop_column("rollouts", "details")
