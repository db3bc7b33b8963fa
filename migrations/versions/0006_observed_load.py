"""What a gateway may say of the load that a request met, and of the positions at which its drafts were accepted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("observations", sa.Column("concurrency", sa.BigInteger(), nullable=True))
    op.add_column("observations", sa.Column("accepted_per_position", sa.ARRAY(sa.BigInteger()), nullable=True))


def downgrade() -> None:
    op.drop_column("observations", "accepted_per_position")
    op.drop_column("observations", "concurrency")
