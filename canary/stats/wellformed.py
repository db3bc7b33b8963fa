"""Whether a pair can be believed: a trace that contradicts itself is set aside before any statistic sees it.

It judges form only. A wrong distribution is what the battery is for; nothing here may look at how likely a text is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from canary.domain.errors import UsageError
from canary.domain.pairs import BLOCK_COLUMNS, TRACE_COLUMNS, Generation, Pair, Provenance, Scheme
from canary.domain.traffic import Stratum
from canary.stats import comparable
from canary.stats.bank import is_active
from canary.stats.batch import Batch, Table
from canary.stats.bets import Array, require_columns
from canary.stats.judged import first_of_round, in_effect
from canary.stats.part import Context
from canary.stats.ragged import Flags

ROUNDING = 1e-5  # of float32 log-probabilities and masses
MASS_ROUNDING = 1e-3  # of float32 sums over a whole vocabulary
UNIT_COLUMNS = ("max_prob", "pit_id", "pit_ratio", "pit_mid", "tv")
LOG_COLUMNS = ("log_prob", "log_ratio", "residual_log_ratio", "bonus_log_ratio")
ROUND_COLUMNS = ("position_in_round", "provenance", "drafted")  # of every trace, greedy ones too

# One rule about traces: which of them break it, and what to say of one.
Rule = tuple[Flags, Callable[[int], str]]


def shape_problem(pair: Pair, context: Context) -> str | None:
    """Why a pair cannot even be read, in words that name the field; None if it can.

    A failed arm is no such reason: it is a finding of its own.
    """
    return pair.error or _arms(pair, context)


def problems(batch: Batch) -> list[str | None]:
    """Why each pair of those that can be read has to be set aside; None if it may enter the statistics."""
    found: list[str | None] = [None] * len(batch.pairs)
    greedy = [at for at, p in enumerate(batch.pairs) if p.stratum is Stratum.GREEDY and p.candidate.error is None]
    traced = [at for at in greedy if batch.pairs[at].candidate.trace is not None]
    others = Table([trace for at in traced if (trace := batch.pairs[at].candidate.trace)])
    for places, table, rules in ((batch.sampled, batch.traces, _sampled), (traced, others, _greedy)):
        if places:
            broken = _first(rules(table, [batch.pairs[at] for at in places], batch.context), len(places))
            for at, why in zip(places, broken, strict=True):
                found[at] = f"candidate: trace: {why}" if why else None
    return [why or comparable.problem(pair) for why, pair in zip(found, batch.pairs, strict=True)]


def _first(rules: Iterator[Rule], count: int) -> list[str | None]:
    """What the first broken rule says of each trace."""
    found: list[str | None] = [None] * count
    for broken, words in rules:
        for at in broken.nonzero()[0].tolist():
            found[at] = found[at] or words(at)
    return found


def _arms(pair: Pair, context: Context) -> str | None:
    """What is wrong with what an arm says about itself, or with the shape of its trace."""
    for generation in (pair.baseline, pair.candidate):
        if generation.error is None and (why := _tokens(generation, context)):
            return f"{generation.arm}: {why}"
    candidate, sampled = pair.candidate, pair.stratum is Stratum.SAMPLED
    if candidate.error is not None:
        return None
    if candidate.trace is None:
        return "candidate: trace is missing" if sampled else None
    try:
        block = in_effect(context.drafter_kind, context.scheme) is Scheme.BLOCK
        needed = (*TRACE_COLUMNS, *BLOCK_COLUMNS) if block else TRACE_COLUMNS
        require_columns(candidate.trace, needed if sampled else ROUND_COLUMNS)
    except UsageError as error:
        return f"candidate: trace: {error}"
    return None


def _tokens(generation: Generation, context: Context) -> str | None:
    if not generation.token_ids:
        return "token_ids are empty"
    low, high = min(generation.token_ids), max(generation.token_ids)
    if low < 0 or high >= context.vocab_size:
        return f"token {low if low < 0 else high} is outside the vocabulary of {context.vocab_size}"
    for name, block in (("trace", generation.trace), ("rows", generation.rows)):
        if block is not None and block.num_tokens != len(generation.token_ids):
            return f"{name} describes {block.num_tokens} tokens, not {len(generation.token_ids)}"
    return None


def _sampled(table: Table, pairs: Sequence[Pair], context: Context) -> Iterator[Rule]:
    yield from _numbers(table)
    yield from _masses(table)
    yield from _rounds(table, pairs, context)
    yield from _judged(table, context)


def _greedy(table: Table, pairs: Sequence[Pair], context: Context) -> Iterator[Rule]:
    yield from _rounds(table, pairs, context)


def _anywhere(table: Table, broken: Flags) -> Flags:
    """Traces with a token that breaks a rule: [tokens] or [tokens, width] to [traces]."""
    return table.tokens.any(broken if broken.ndim == 1 else np.asarray(broken.any(axis=1)))


def _extreme(table: Table, values: Array, at: int, *, lowest: bool = False) -> float:
    """The largest, or the lowest, value of one trace; values [tokens]."""
    own = values[table.tokens.starts[at] : table.tokens.ends[at]]
    return float(own.min() if lowest else own.max())


def _said(words: str) -> Callable[[int], str]:
    return lambda at: words


def _numbers(table: Table) -> Iterator[Rule]:
    """What is wrong with the probabilities of sampled traces.

    Minus infinity is allowed: a token outside the target's support is the strongest evidence there is, not a broken trace.
    """
    if _all_in_range(table):
        return
    for name in (*LOG_COLUMNS, *UNIT_COLUMNS):
        yield _anywhere(table, np.isnan(table.column(name))), _said(f"{name} is not a number")
    log_prob = table.column("log_prob")
    yield _anywhere(table, log_prob > ROUNDING), lambda at: f"log_prob {_extreme(table, log_prob, at):.6g} is above 0"
    for name in UNIT_COLUMNS:
        values = table.column(name)
        yield _anywhere(table, (values < -ROUNDING) | (values > 1 + ROUNDING)), _said(f"{name} is outside 0 to 1")


def _all_in_range(table: Table) -> bool:
    """Whether no rule of `_numbers` can be broken, seen at one glance; a comparison with what is not a number is false."""
    units = np.concatenate([table.column(name).reshape(table.tokens.size, -1) for name in UNIT_COLUMNS], axis=1)
    logs = (table.column(name) for name in LOG_COLUMNS)
    inside = ((units >= -ROUNDING) & (units <= 1 + ROUNDING)).all() and (table.column("log_prob") <= ROUNDING).all()
    return bool(inside) and not any(np.isnan(each).any() for each in logs)


def _masses(table: Table) -> Iterator[Rule]:
    """Where a token's probability does not fit into its row: as of a row that does not sum to 1, or of another row's values."""
    p = np.exp(table.column("log_prob"))
    over = p - table.column("max_prob")
    yield (
        _anywhere(table, over > MASS_ROUNDING),
        lambda at: f"a token has more than its row's largest probability, by {_extreme(table, over, at):.3g}",
    )
    below, above = table.column("pit_mid") - p / 2, table.column("pit_mid") + p / 2
    yield (
        _anywhere(table, (below < -MASS_ROUNDING) | (above > 1 + MASS_ROUNDING)),
        lambda at: (
            f"a row does not sum to 1, it reaches from {_extreme(table, below, at, lowest=True):.4g} "
            f"to {_extreme(table, above, at):.4g}"
        ),
    )
    # A token outside the support has no share to be in; that it was emitted at all is evidence and not a broken trace.
    outside = np.where(p > 0, np.maximum(below - table.column("pit_id"), table.column("pit_id") - above), 0.0)
    yield (
        _anywhere(table, outside > MASS_ROUNDING),
        lambda at: f"pit_id is outside its token's share of the row, by {_extreme(table, outside, at):.3g}",
    )


def _judged(table: Table, context: Context) -> Iterator[Rule]:
    """What is missing or impossible where a draft was judged or a token recovered, as far as the component tests read it."""
    drafted, recovered = table.column("drafted") == 1, table.column("provenance") == Provenance.RECOVERED
    block = in_effect(context.drafter_kind, context.scheme) is Scheme.BLOCK
    read = {
        "acc": {"accept_threshold": drafted, "accept_uniform": drafted},
        **({"acc_block": _of_rounds(table, recovered)} if block else {}),
        "draft_pit": {"draft_pit": drafted, "draft_mid": drafted},
        "res_pit": {"residual_pit": recovered},
    }
    for test, places in read.items():
        if not is_active(test, context.drafter_kind, context.scheme):
            continue
        for name, where in places.items():
            values = table.column(name)
            yield _anywhere(table, where & np.isnan(values)), _said(f"{name} is not a number where one is needed")
            outside = where & ((values < -ROUNDING) | (values > 1 + ROUNDING))
            yield _anywhere(table, outside), _said(f"{name} is outside 0 to 1")


def _of_rounds(table: Table, recovered: Flags) -> dict[str, Flags]:
    """What is needed where of rounds whose drafts were judged together."""
    first = first_of_round(table)
    return {"block_pit": first, "accept_uniform": first, "block_weight": recovered}


def _rounds(table: Table, pairs: Sequence[Pair], context: Context) -> Iterator[Rule]:
    """Where a trace's account of its rounds contradicts itself or the counts of the loop; greedy traces have one too.

    The two are written in different places (the trace by position, the counts by step), so that a token that was emitted and not
    verified, or verified and not emitted, shows. Only what was cut at the end of the last round may be missing here.
    """
    position, provenance, drafted = (table.column(name) for name in ROUND_COLUMNS)
    tokens, k = table.tokens, context.num_speculative_tokens
    inside = (position >= 0) & (position <= k)
    yield _anywhere(table, ~inside), _said(f"position_in_round is outside 0 to {k}")
    yield (
        _anywhere(table, (provenance > max(Provenance)) | (drafted > 1)),
        _said("provenance or drafted is not a known code"),
    )
    accepted = provenance == Provenance.ACCEPTED
    judged = accepted | (provenance == Provenance.RECOVERED)
    num_accepted, num_judged, num_drafted = (tokens.sum(each).astype(int) for each in (accepted, judged, drafted))
    most, cut = (np.array([getattr(pair.candidate.stats, name) for pair in pairs]) for name in ("num_accepted_tokens", "num_cut"))
    yield (
        (num_accepted > most) | (num_accepted < most - cut),
        lambda at: f"{num_accepted[at]} tokens are accepted drafts, but the loop accepted {most[at]} and cut {cut[at]}",
    )
    yield (
        _anywhere(table, (drafted == 1) != judged),
        lambda at: f"{num_drafted[at]} tokens were drafted, but {num_judged[at]} were accepted or recovered",
    )
    held = accepted & inside
    cells = tokens.group[held] * (k + 1) + position[held].astype(np.int64)
    per_position = np.bincount(cells, minlength=len(pairs) * (k + 1)).reshape(len(pairs), k + 1)
    yield (
        np.asarray((np.diff(per_position, axis=1) > 0).any(axis=1)),
        lambda at: f"acceptance per position rises: {per_position[at, :k].tolist()}",
    )
