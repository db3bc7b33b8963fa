"""Units that a person has pinned to a variant, and runs of jobs that a person has asked the scheduler for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pins",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("pinned_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.CheckConstraint("variant in ('baseline', 'candidate')", name=op.f("ck_pins_variant")),
        sa.PrimaryKeyConstraint("route", "unit", name=op.f("pk_pins")),
    )
    op.create_table(
        "job_orders",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_job_orders")),
    )


def downgrade() -> None:
    op.drop_table("job_orders")
    op.drop_table("pins")
