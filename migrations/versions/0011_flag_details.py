"""What a flag carries beside its weight and its switch: kill epoch, pins, configuration, and what a lost control plane does."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("flags", sa.Column("details", sa.Text(), nullable=False, server_default="{}"))
    op.alter_column("flags", "details", server_default=None)


def downgrade() -> None:
    op.drop_column("flags", "details")
