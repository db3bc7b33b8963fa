"""What is known of a route's models before anything is drafted: plain values that an engine collects and `preflight` judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer, as far as it decides what a token means.

    Args:
        words: every token with its id, added ones included.
        added: the added ones alone.
        special: id of each name in `SPECIAL`, None where there is none.
        pieces: the probe texts' tokens as strings, nothing added.
        framed: the same with the tokens that the tokenizer adds by itself.
        template: digest of the chat template, `none` without one.
        renderings: the probe chats through it; a failure is its error's name.
    """

    kind: str
    words: Mapping[str, int]
    added: Mapping[str, int]
    special: Mapping[str, int | None]
    pieces: tuple[tuple[str, ...], ...]
    framed: tuple[tuple[str, ...], ...]
    template: str
    renderings: tuple[str, ...]

    @property
    def length(self) -> int:
        """Rows that a model needs for all of its ids."""
        return max(self.words.values(), default=-1) + 1

    def special_word(self, name: str) -> str | None:
        """The token behind a special id."""
        found = self.special[name]
        return None if found is None else next((w for w, i in self.words.items() if i == found), f"#{found}")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model directory.

    Args:
        name: as the policy gives it.
        obstacle: why it cannot be read at all; everything else is empty then.
        rollback: why its cache cannot forget rejected drafts, None where it can.
        head_width: columns of its rows.
        embedding_rows: ids that it can be fed.
        max_positions: its context.
        positions, cache: how it counts positions and keeps its past.
        weight_bytes: of its weights, packed copies included.
        cache_bytes: keys and values of one token.
    """

    name: str
    family: str = ""
    dtype: str = ""
    tokenizer: Tokenizer | None = None
    head_width: int = 0
    embedding_rows: int = 0
    max_positions: int = 0
    positions: str = ""
    cache: str = ""
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0
    obstacle: str | None = None
    rollback: str | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """Baseline runs of a handful of requests, one after the other.

    Args:
        prefill_seconds, total_seconds: sums over them.
        num_tokens: emitted.
        prompt_tokens: of the longest prompt.
    """

    requests: int
    prefill_seconds: float
    total_seconds: float
    num_tokens: int
    prompt_tokens: int

    @property
    def decode_share(self) -> float:
        """Share of the end-to-end latency that is decoding, which is all that speculation can shorten."""
        return 1 - self.prefill_seconds / self.total_seconds if self.total_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """A route before speculation.

    Args:
        drafter: its name in the policy.
        draft: the draft model, None for a drafter without one.
        carried_share: share of the draft's words that the engine can map to the target's; None where it maps none.
        unmapped: why the engine does not map the draft's vocabulary, None where it does or need not.
        heads_bytes: weights of heads on the target.
        memory_bytes: of the device, or as given.
        sequence_tokens: cached tokens of one request at its end.
        latency: None where nothing was run.
        notes: what could not be found out, one sentence each.
    """

    route: str
    drafter: str
    target: ModelFacts
    draft: ModelFacts | None
    memory_bytes: float
    sequence_tokens: int
    heads_bytes: float = 0.0
    carried_share: float | None = None
    unmapped: str | None = None
    latency: Latency | None = None
    notes: tuple[str, ...] = field(default=())


class Level(StrEnum):
    """How much a finding counts."""

    REFUSED = "refused"
    CARRIED = "carried"  # differs, and the drafter maps it
    WARNING = "warning"
    NOTE = "note"  # looks like a mismatch and is none


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that preflight has to say.

    Args:
        field: what it is about, `target.` or `draft.` first where it is one model's.
    """

    field: str
    level: Level
    sentence: str
