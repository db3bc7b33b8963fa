"""Preflight: may this target and this drafter go together at all, what do they need in memory, and is there anything to gain?

Pure: it judges `preflight_facts` and loads nothing. A mismatch refuses the route and names its field; what only looks like one is
noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from canary.domain.errors import ExitCode
from canary.flow.tools.preflight_facts import Finding, Level, ModelFacts, RouteFacts
from canary.flow.tools.preflight_pair import together

PREFILL_BOUND = 0.5  # share of decoding below which a route is called prefill-bound


@dataclass(frozen=True, slots=True)
class Room:
    """Memory, in bytes, and how many requests fit.

    Args:
        before, after: requests together without and with speculation.
        target_sequence, draft_sequence: keys and values of one request at its end.
    """

    total: float
    target: float
    draft: float
    heads: float
    target_sequence: float
    draft_sequence: float
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Preflight:
    """The whole report."""

    facts: RouteFacts
    findings: tuple[Finding, ...]
    room: Room

    @property
    def refused(self) -> bool:
        return any(f.level is Level.REFUSED for f in self.findings)

    @property
    def code(self) -> ExitCode:
        return ExitCode.USAGE if self.refused else ExitCode.PASS


def judge(facts: RouteFacts) -> Preflight:
    """Everything that the facts say against the route, and what there is to know."""
    room = room_of(facts)
    findings = [*_alone("target", facts.target)]
    if facts.draft is not None:
        findings += _alone("draft", facts.draft)
        if facts.target.tokenizer is not None and facts.draft.tokenizer is not None:
            findings += together(facts)
    findings += _memory(facts, room)
    findings += _latency(facts)
    findings += [Finding("preflight", Level.WARNING, note) for note in facts.notes]
    return Preflight(facts, tuple(findings), room)


def room_of(facts: RouteFacts) -> Room:
    """How many requests the memory holds, weights and caches counted."""
    draft = facts.draft or ModelFacts("")
    ours, theirs = (m.cache_bytes * facts.sequence_tokens for m in (facts.target, draft))
    left = facts.memory_bytes - facts.target.weight_bytes
    also = left - draft.weight_bytes - facts.heads_bytes
    return Room(
        total=facts.memory_bytes,
        target=facts.target.weight_bytes,
        draft=draft.weight_bytes,
        heads=facts.heads_bytes,
        target_sequence=ours,
        draft_sequence=theirs,
        before=max(0, int(left // ours)) if ours else 0,
        after=max(0, int(also // (ours + theirs))) if ours else 0,
    )


def _alone(whose: str, model: ModelFacts) -> Iterator[Finding]:
    if model.obstacle is not None:
        yield Finding(f"{whose}.weights", Level.REFUSED, f"The {whose} model cannot be read: {model.obstacle}.")
        return
    if model.rollback is not None:
        yield Finding(f"{whose}.cache", Level.REFUSED, f"The {whose} model cannot take drafts back: {model.rollback}.")
    words = model.tokenizer
    if words is not None and model.embedding_rows < words.length:
        sentence = (
            f"The {whose}'s tokenizer has ids up to {words.length - 1}, but its model has only {model.embedding_rows} embedding "
            "rows: a token beyond them cannot be fed."
        )
        yield Finding(f"{whose}.embedding_rows", Level.REFUSED, sentence)
    elif words is not None and model.head_width < words.length:
        sentence = f"The {whose}'s tokenizer has ids up to {words.length - 1}, but its head has only {model.head_width} columns."
        yield Finding(f"{whose}.vocab_size", Level.REFUSED, sentence)


def _memory(facts: RouteFacts, room: Room) -> Iterator[Finding]:
    if facts.target.obstacle is not None or not room.target_sequence:
        return
    if room.after < 1:
        what = "not even the baseline" if room.before < 1 else f"{room.before} requests without speculation and none"
        end = " fits." if room.before < 1 else " with it fit."
        yield Finding("memory", Level.REFUSED, f"In {room.total / 2**30:.3g} GiB {what}{end}")
    elif room.after < room.before:
        lost = 100 * (1 - room.after / room.before)
        sentence = f"Speculation takes the room of {room.before - room.after} of {room.before} requests ({lost:.2g} %)."
        yield Finding("memory", Level.WARNING, sentence)


def _latency(facts: RouteFacts) -> Iterator[Finding]:
    if facts.latency is None or facts.latency.decode_share >= PREFILL_BOUND:
        return
    share = facts.latency.decode_share
    sentence = (
        f"The route is prefill-bound: {100 * share:.0f} % of its latency is decoding, so that drafts could make it at most "
        f"{1 / (1 - share):.2f} times as fast, however good they are."
    )
    yield Finding("latency.decode_share", Level.WARNING, sentence)


def as_body(found: Preflight) -> Mapping[str, object]:
    """The report as plain JSON."""
    facts, late = found.facts, found.facts.latency

    def model(each: ModelFacts | None) -> Mapping[str, object] | None:
        if each is None:
            return None
        words = each.tokenizer
        return {
            "name": each.name,
            "family": each.family,
            "dtype": each.dtype,
            "vocab_size": each.head_width,
            "embedding_rows": each.embedding_rows,
            "tokenizer_length": words.length if words else None,
            "tokenizer": words.kind if words else None,
            "special_ids": dict(words.special) if words else None,
            "chat_template": words.template if words else None,
            "max_positions": each.max_positions,
            "positions": each.positions,
            "cache": each.cache,
            "weight_bytes": each.weight_bytes,
            "cache_bytes_per_token": each.cache_bytes,
        }

    return {
        "route": facts.route,
        "ok": not found.refused,
        "code": int(found.code),
        "drafter": facts.drafter,
        "target": model(facts.target),
        "draft": model(facts.draft),
        "memory": {name: getattr(found.room, name) for name in Room.__slots__},
        "sequence_tokens": facts.sequence_tokens,
        "latency": None
        if late is None
        else {
            "requests": late.requests,
            "prefill_seconds": late.prefill_seconds,
            "total_seconds": late.total_seconds,
            "num_tokens": late.num_tokens,
            "decode_share": late.decode_share,
        },
        "findings": [{"field": f.field, "level": f.level.value, "sentence": f.sentence} for f in found.findings],
    }
