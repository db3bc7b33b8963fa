"""Files of observations: NDJSON in, every complaint at its line and field, and nothing kept of a file with a wrong line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from canary.domain.errors import UsageError
from canary.domain.observations import Observation
from canary.flow.ports import Store
from canary.flow.walk.observe import MAX_BATCH, Observed, observe, read_observation, require_past

MAX_LINE = 64 * 1024  # bytes; an observation holds numbers and a few short words
MAX_LINES = 1_000_000


def read_file(path: Path, route: str, now: float) -> list[Observation]:
    """The observations of a file, or of standard input for `-`; blank lines are skipped.

    Args:
        now: seconds since the epoch; what was observed well after it is a mistake.

    Raises:
        UsageError: names the line and the field of the first mistake.
    """
    try:
        block = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", where=str(path), remedy="Name a file.") from error
    lines = block.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if len(lines) > MAX_LINES:
        raise UsageError(f"has {len(lines)} lines", where=str(path), remedy=f"Split it into files of {MAX_LINES} lines.")
    return [_read(line, route, now, f"{path}:{at}") for at, line in enumerate(lines, start=1) if line.strip()]


def keep(store: Store, observations: Sequence[Observation], now: float) -> dict[str, int]:
    """Store them in batches; a second try after a failure counts the first one's as repeats.

    Returns:
        How many were `new` and how many `repeat`.
    """
    counts = dict.fromkeys((state.value for state in Observed), 0)
    for start in range(0, len(observations), MAX_BATCH):
        for state in observe(store, observations[start : start + MAX_BATCH], now):
            counts[state.value] += 1
    return counts


def _read(line: bytes, route: str, now: float, where: str) -> Observation:
    if len(line) > MAX_LINE:
        raise UsageError(f"the line is longer than {MAX_LINE} bytes", where=where, remedy="Send numbers, not texts.")
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise UsageError("the line is not JSON", where=where, remedy="Write one object a line, in UTF-8.") from None
    try:
        found = read_observation(record, route)
        require_past(found, now)
    except UsageError as error:
        raise UsageError(error.detail, where=where, remedy=error.remedy) from None
    return found


def _refuse(name: str) -> None:
    raise ValueError(name)
