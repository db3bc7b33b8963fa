"""API keys, answers by Idempotency-Key, and the hash chain of the audit log. Events from before it carry no digest."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audit", sa.Column("previous", sa.Text(), nullable=True))
    op.add_column("audit", sa.Column("digest", sa.Text(), nullable=True))
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("routes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.CheckConstraint("role in ('viewer', 'operator', 'approver', 'admin')", name=op.f("ck_api_keys_role")),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_api_keys")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("caller", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_started_at"), "idempotency_keys", ["started_at"])


def downgrade() -> None:
    op.drop_table("idempotency_keys")
    op.drop_table("api_keys")
    op.drop_column("audit", "digest")
    op.drop_column("audit", "previous")
