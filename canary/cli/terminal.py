"""What every command needs of the terminal: a console that cuts nothing in a file, and who is asking."""

from __future__ import annotations

import getpass

from rich.console import Console

FILE_WIDTH = 200


def standard_output(file_width: int = FILE_WIDTH) -> Console:
    """A console on today's standard output; `file_width` columns when that is a file, so that nothing is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=file_width)


def user() -> str:
    """Who asks, for the audit log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown user"
