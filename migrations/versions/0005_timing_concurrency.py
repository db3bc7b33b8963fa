"""How many requests were timed together. Pairs from before it were timed alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ARMS = ("baseline", "candidate")


def upgrade() -> None:
    for arm in ARMS:
        op.add_column("pairs", sa.Column(f"{arm}_timing_concurrency", sa.Integer(), nullable=True))
        op.execute(f"update pairs set {arm}_timing_concurrency = 1 where {arm}_ttft_seconds is not null")


def downgrade() -> None:
    for arm in ARMS:
        op.drop_column("pairs", f"{arm}_timing_concurrency")
