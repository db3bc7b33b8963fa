"""How long prompts and numbers are kept: two lifetimes, so that content can go early and figures stay. Whole days go at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Protocol

from canary.domain.errors import UsageError
from canary.flow.ports import Store

CONTENT = ("prompts",)  # tables whose partitions are content and nothing else
NUMBERS = ("pairs", "observations")
NOTICE_DAYS = 30
RUN_DAYS = 90
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Whole days.

    Args:
        content: of prompts and answers.
        numbers: of pairs and observations; never less than the content's.

    Raises:
        UsageError: a lifetime is below a day, or numbers would go before content.
    """

    content: int = 30
    numbers: int = 400

    def __post_init__(self) -> None:
        if not 1 <= self.content <= self.numbers:
            raise UsageError(
                f"content is kept {self.content} days and numbers {self.numbers}",
                where="CANARY_CONTENT_DAYS",
                remedy="Keep content for at least a day, and numbers for at least as long.",
            )


class Days(Protocol):
    """A store whose tables lie in daily partitions."""

    def drop_days(self, table: str, before: date) -> list[str]:
        """Drop a table's partitions of days before that one; returns their names."""

    def blank_days(self, before: date) -> int:
        """Empty the answers in pairs of days before that one, their numbers stay; returns how many pairs."""


def retain(store: Store, days: Days | None, lifetimes: Lifetimes, now: float) -> str:
    """Drop what is past its lifetime; running it twice changes nothing more.

    Args:
        days: None where the store keeps no days.
        now: seconds since the epoch.

    Returns:
        What went, in a sentence.
    """
    today = datetime.fromtimestamp(now, UTC).date()
    dropped: list[str] = []
    blanked = 0
    if days is not None:
        for tables, kept in ((CONTENT, lifetimes.content), (NUMBERS, lifetimes.numbers)):
            for table in tables:
                dropped += days.drop_days(table, today - timedelta(days=kept))
        blanked = days.blank_days(today - timedelta(days=lifetimes.content))
    with store.transaction() as tx:
        notices, runs = tx.notices.forget(now - NOTICE_DAYS * DAY), tx.jobs.forget(now - RUN_DAYS * DAY)
        tx.shadow_runs.forget(now - RUN_DAYS * DAY)
        tx.commit()
    return f"dropped {len(dropped)} partitions, emptied {blanked} pairs, forgot {notices} notices and {runs} job runs"
