"""Scheduled shadow runs: windows outside of which no new prompt of a route is run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "shadow_runs",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("most", sa.BigInteger(), nullable=True),
        sa.Column("taken", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("taken >= 0", name=op.f("ck_shadow_runs_taken")),
        sa.PrimaryKeyConstraint("route", "due_at", name=op.f("pk_shadow_runs")),
    )


def downgrade() -> None:
    op.drop_table("shadow_runs")
