"""Kill orders, which are taken also while the database is away and settled here when it is back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "kill_orders",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("order_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("undoes", sa.Text(), nullable=False),
        sa.CheckConstraint("act in ('kill', 'unkill')", name=op.f("ck_kill_orders_act")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_kill_orders")),
        sa.UniqueConstraint("order_id", name=op.f("uq_kill_orders_order_id")),
    )
    op.create_index(op.f("ix_kill_orders_scope_seq"), "kill_orders", ["scope", "seq"], unique=False)


def downgrade() -> None:
    op.drop_table("kill_orders")
