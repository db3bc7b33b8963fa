"""Counts of what the mirror saw and kept, and the kind of request that a claim is about. Claims from before know no kind."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

CLAIM_COLUMNS = (("stratum", sa.Text), ("length", sa.BigInteger))


def upgrade() -> None:
    for name, kind in CLAIM_COLUMNS:
        op.add_column("claims", sa.Column(name, kind(), nullable=True))
    op.create_table(
        "mirror_counts",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("rate", sa.Double(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("length", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.Column("kept", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kept between 0 and seen", name=op.f("ck_mirror_counts_kept")),
        sa.PrimaryKeyConstraint("route", "rate", "endpoint", "stream", "length", name=op.f("pk_mirror_counts")),
    )


def downgrade() -> None:
    op.drop_table("mirror_counts")
    for name, _ in reversed(CLAIM_COLUMNS):
        op.drop_column("claims", name)
