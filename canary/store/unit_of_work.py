"""One transaction over all repositories; leaving it without `commit` keeps nothing.

It never commits by itself: `flow` is the only caller of `commit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date

from sqlalchemy import Connection, create_engine

from canary.flow import ports
from canary.store.audit import Audit
from canary.store.claims import Claims
from canary.store.evidence import EvidenceRows
from canary.store.flags import Flags
from canary.store.idempotency import Answers
from canary.store.job_runs import JobRuns
from canary.store.keys import Keys
from canary.store.kills import KillOrders
from canary.store.leader import Leaders
from canary.store.mirrored import Mirrored
from canary.store.observations import Observations
from canary.store.outbox import Notices
from canary.store.pairs import Pairs
from canary.store.partitions import blank_days, drop_days, ensure_partitions
from canary.store.pins import Pins
from canary.store.policies import Policies
from canary.store.problems import read_url, translated
from canary.store.prompts import Prompts
from canary.store.proposals import Proposals
from canary.store.rollouts import Rollouts
from canary.store.shadow_runs import ShadowRuns

# A process that is stopped inside a transaction must not keep a route's row lock: a kill waits behind it.
SESSION_OPTIONS = "-c idle_in_transaction_session_timeout=30s -c lock_timeout=40s"


class PostgresTransaction:
    """`Transaction` on one connection."""

    prompts: ports.PromptStore
    mirrored: ports.MirroredStore
    claims: ports.ClaimStore
    pairs: ports.PairStore
    observations: ports.ObservationStore
    evidence: ports.EvidenceStore
    rollouts: ports.RolloutStore
    flags: ports.FlagStore
    pins: ports.PinStore
    kills: ports.KillStore
    policies: ports.PolicyStore
    proposals: ports.ProposalStore
    audit: ports.AuditStore
    keys: ports.KeyStore
    answers: ports.AnswerStore
    notices: ports.NoticeStore
    jobs: ports.JobStore
    shadow_runs: ports.ShadowRunStore
    leaders: ports.LeaderStore

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.prompts = Prompts(connection)
        self.mirrored = Mirrored(connection)
        self.claims = Claims(connection)
        self.pairs = Pairs(connection)
        self.observations = Observations(connection)
        self.evidence = EvidenceRows(connection)
        self.rollouts = Rollouts(connection)
        self.flags = Flags(connection)
        self.pins = Pins(connection)
        self.kills = KillOrders(connection)
        self.policies = Policies(connection)
        self.proposals = Proposals(connection)
        self.audit = Audit(connection)
        self.keys = Keys(connection)
        self.answers = Answers(connection)
        self.notices = Notices(connection)
        self.jobs = JobRuns(connection)
        self.shadow_runs = ShadowRuns(connection)
        self.leaders = Leaders(connection)

    def commit(self) -> None:
        """Keep everything since the transaction began."""
        self._connection.commit()


class PostgresStore:
    """`Store` on a migrated Postgres.

    Args:
        url: address of the database; nothing is opened before the first transaction.
        pool_size: connections kept; twice as many may be open at a time.

    Raises:
        UsageError: the address is not a Postgres one.
    """

    def __init__(self, url: str, *, pool_size: int = 4) -> None:
        self.url = read_url(url)
        asked = {} if "connect_timeout" in self.url.query else {"connect_timeout": 10}
        if "options" not in self.url.query:
            asked["options"] = SESSION_OPTIONS
        # A server that was restarted must cost one ping, not one failed request; parameters are prompts and stay out of messages.
        self._engine = create_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args=asked,
        )

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        """One unit of work.

        Raises:
            UnreachableError: the database does not answer, is full, or is not migrated.
            ConflictError: somebody else wrote the same rows first.
        """
        with translated(self.url), self._engine.connect() as connection:
            yield PostgresTransaction(connection)

    def ensure_partitions(self, today: date, days: int = 7) -> list[str]:
        """Make the daily partitions of today and the `days` after it; returns the names of the new ones."""
        with translated(self.url), self._engine.begin() as connection:
            return ensure_partitions(connection, today, days)

    def drop_days(self, table: str, before: date) -> list[str]:
        """Drop a table's daily partitions before a day; returns their names."""
        with translated(self.url), self._engine.begin() as connection:
            return drop_days(connection, table, before)

    def blank_days(self, before: date) -> int:
        """Empty the answers in pairs of days before that one, whose numbers stay; returns how many pairs."""
        with translated(self.url), self._engine.begin() as connection:
            return blank_days(connection, before)

    def close(self) -> None:
        """Close every idle connection."""
        self._engine.dispose()
