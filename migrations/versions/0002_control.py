"""The A/A arm: which claims and pairs compare the baseline with itself. Rows from before it are none of those."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLES = ("claims", "pairs")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("control", sa.Boolean(), nullable=False, server_default=sa.false()))
        op.alter_column(table, "control", server_default=None)


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_column(table, "control")
