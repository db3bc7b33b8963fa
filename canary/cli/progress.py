"""Progress on standard error, so that standard output stays clean for `--json` and pipes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class Report(Protocol):
    """Tells how far the work is."""

    def __call__(self, what: str, done: float, total: float = 1.0) -> None: ...


console = Console(stderr=True)


@contextmanager
def progress_bar(title: str, *, quiet: bool = False) -> Iterator[Report]:
    """A bar fed by (what, done, total) calls; draws nothing until the first call."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet, transient=True) as bar:
        task = bar.add_task(title, total=None, visible=False)

        def report(what: str, done: float, total: float = 1.0) -> None:
            bar.update(task, description=f"{title}: {what}", completed=done, total=total, visible=True)

        yield report
