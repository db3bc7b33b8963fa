"""Where notes of the walk go: structured lines on standard error, never a prompt's text."""

from __future__ import annotations

import logging
import sys

import structlog


class LogObserver:
    """`flow.ports.Observer` over structlog."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("canary")

    def note(self, event: str, **facts: object) -> None:
        self._log.info(event, **facts)


class SilentObserver:
    """`flow.ports.Observer` that keeps quiet, for a terminal that shows progress instead."""

    def note(self, event: str, **facts: object) -> None:
        return None


def configure(level: str = "info", *, as_json: bool = False) -> None:
    """Send structured lines to standard error.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        as_json: one JSON object a line in place of coloured text.
    """
    renderer = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
