"""Faults in what the loop does around a round: cache lengths, the token it feeds, where an answer ends, and how it counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from canary.domain.catalogue.entry import LATE
from canary.engine.faults.judging import Inject
from canary.engine.hooks import Advance, Count, Hooks, Take
from canary.engine.record import Line
from canary.engine.requests import Running, Words

SOMETIMES = 10


def advancing(change: Callable[[Advance, list[int], int, Running, Line], None]) -> Inject:
    """The injection of a fault in the cache lengths."""
    return lambda hooks: replace(
        hooks, advance=lambda lengths, row, running, line: change(hooks.advance, lengths, row, running, line)
    )


def ending(change: Callable[[Take, Running, Sequence[int], frozenset[int], Words], list[int]]) -> Inject:
    """The injection of a fault in where answers end."""
    return lambda hooks: replace(hooks, take=lambda running, ids, ends, words: change(hooks.take, running, ids, ends, words))


def counting(change: Callable[[Count, Line], tuple[int, int]]) -> Inject:
    """The injection of a fault in the counts."""
    return lambda hooks: replace(hooks, count=lambda line: change(hooks.count, line))


# Cache


def rejected_kept(advance: Advance, lengths: list[int], row: int, running: Running, line: Line) -> None:
    """Keep the rejected drafts inside the row's length."""
    advance(lengths, row, running, line)
    lengths[row] += line.num_drafted - line.num_accepted


def rejected_kept_sometimes(advance: Advance, lengths: list[int], row: int, running: Running, line: Line) -> None:
    """As `rejected_kept`, after about one round in ten."""
    sometimes = (lengths[row] * 2654435761 + len(running.job.token_ids)) % 1_000_003 % SOMETIMES == 0
    (rejected_kept if sometimes else _clean)(advance, lengths, row, running, line)


def rejected_kept_late(advance: Advance, lengths: list[int], row: int, running: Running, line: Line) -> None:
    """As `rejected_kept`, once the answer is long."""
    late = len(running.token_ids) >= LATE
    (rejected_kept if late else _clean)(advance, lengths, row, running, line)


def short_crop(advance: Advance, lengths: list[int], row: int, running: Running, line: Line) -> None:
    """Forget one token too many after a rejection."""
    advance(lengths, row, running, line)
    lengths[row] -= line.num_accepted < line.num_drafted


def longest_length(advance: Advance, lengths: list[int], row: int, running: Running, line: Line) -> None:
    """Give the row the length of the longest one."""
    advance(lengths, row, running, line)
    lengths[row] = max(lengths)


def _clean(advance: Advance, lengths: list[int], row: int, running: Running, line: Line) -> None:
    advance(lengths, row, running, line)


def token_fed_twice(hooks: Hooks) -> Hooks:
    """Feed the last accepted token again instead of the one that followed it."""

    def pending(running: Running) -> int:
        return running.token_ids[-2] if running.accepted[-1] else hooks.pending(running)

    return replace(hooks, pending=pending)


# Ends


def end_tested_on_last_only(take: Take, running: Running, ids: Sequence[int], ends: frozenset[int], words: Words) -> list[int]:
    """Emit the whole round, then look at its last token."""
    running.token_ids.extend(ids[:-1])
    take(running, ids[-1:], ends, words)
    return list(ids)


def length_tested_first(take: Take, running: Running, ids: Sequence[int], ends: frozenset[int], words: Words) -> list[int]:
    """A round that reaches the length limit ends there, whatever came before."""
    if len(running.token_ids) + len(ids) < running.max_tokens:
        return take(running, ids, ends, words)
    running.token_ids.extend(ids)
    running.finish_reason = "length"
    return list(ids)


def drafts_leak_past_end(take: Take, running: Running, ids: Sequence[int], ends: frozenset[int], words: Words) -> list[int]:
    """Find the end, and leave what follows it in the answer."""
    kept = take(running, ids, ends, words)
    running.token_ids.extend(ids[len(kept) :])
    running.num_cut = 0
    return list(ids)


# Counts


def bonus_counted(count: Count, line: Line) -> tuple[int, int]:
    """Count the token after the drafts as accepted."""
    drafted, accepted = count(line)
    return drafted, accepted + (drafted > 0)


def biased_counts(count: Count, line: Line) -> tuple[int, int]:
    """(accepted + 1) of (drafted + 1)."""
    drafted, accepted = count(line)
    return drafted + (drafted > 0), accepted + (drafted > 0)


def counted_past_end(take: Take, running: Running, ids: Sequence[int], ends: frozenset[int], words: Words) -> list[int]:
    """Do not count what was cut."""
    kept = take(running, ids, ends, words)
    running.num_cut = 0
    return kept
