"""One request on its way through the loop: what was asked, what came out so far, and when it ends.

Stop strings, EOS, stop ids and the length limit are looked at token by token, so that they cut inside an accepted run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from transformers import PreTrainedTokenizerBase

from canary.domain.errors import IdentityError
from canary.domain.pairs import DecodeStats
from canary.domain.traffic import PLAIN_FORM, AnswerForm, SamplingParams, Stratum
from canary.engine.asked import bans, ends_of
from canary.engine.logprobs import TokenLogprobs
from canary.engine.penalties import Shaping
from canary.engine.record import Record
from canary.engine.streams import key_from_bytes

Words = PreTrainedTokenizerBase


def to_text(words: Words, token_ids: Sequence[int]) -> str:
    """Tokens as the client would see them, special tokens left out."""
    return str(words.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


@dataclass(frozen=True, slots=True)
class Job:
    """One request, tokenised.

    Args:
        index: the caller's own number, handed back with the result.
        key: random key, see `streams.key_from_bytes`.
        error: why it cannot run, None if it can.
        form: what the request asks of its answer's form; no draw depends on it.
        choice: which of the `n` answers that were asked for this one is.
    """

    index: int
    token_ids: tuple[int, ...]
    params: SamplingParams
    key: tuple[int, int]
    error: str | None = None
    form: AnswerForm = PLAIN_FORM
    choice: int = 0

    @property
    def greedy(self) -> bool:
        return self.params.stratum is Stratum.GREEDY


def choices(job: Job) -> tuple[Job, ...]:
    """One job per answer that was asked for (`n`). The first keeps the key, every other has its own, so no two share a draw."""

    def key(choice: int) -> tuple[int, int]:
        said = f"{job.key[0]}\x1f{job.key[1]}\x1f{choice}".encode()
        return job.key if choice == 0 else key_from_bytes(blake2b(said, digest_size=16).digest())

    return tuple(replace(job, key=key(choice), choice=choice) for choice in range(job.params.n))


@dataclass(slots=True)
class Running:
    """A request that has a row.

    Args:
        max_tokens: most tokens to emit, the context considered.
        finish_reason: None until it ends.
        first_at: the loop's clock when the first token was known, if it has a clock.
        shaping: what changes its logits, None if nothing does.
        logprobs: of every emitted token, where the request asked for them.
    """

    job: Job
    max_tokens: int
    record: Record | None = None
    token_ids: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    num_cut: int = 0
    finish_reason: str | None = None
    error: str | None = None
    first_at: float | None = None
    shaping: Shaping | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def shape(self, eos_ids: frozenset[int], words: Words) -> None:
        """Find out what changes the logits; the parameters must be usable (`asked.obstacle`)."""
        job, params = self.job, self.job.params
        if params.shaped:
            ends = ends_of(params, eos_ids)
            self.shaping = Shaping(job.token_ids, params, bans(params, words, ends), ends)

    def take(self, token_ids: Sequence[int], eos_ids: frozenset[int], words: Words) -> list[int]:
        """Emit the tokens of one step until the request ends; the rest is cut and counted.

        Args:
            eos_ids: of the model; the request may add stop ids or ignore them.

        Returns:
            The tokens that were kept.
        """
        ends = ends_of(self.job.params, eos_ids)
        for count, token in enumerate(token_ids, start=1):
            self.token_ids.append(token)
            self.finish_reason = self._finished(token, ends, words)
            if self.finish_reason is not None:
                self.num_cut += len(token_ids) - count
                return list(token_ids[:count])
        return list(token_ids)

    def fail(self, why: str) -> None:
        """End with an error; what was emitted before stays."""
        self.finish_reason, self.error = "error", why

    def text(self, words: Words) -> str:
        """The answer, which ends before a stop string or a stop id."""
        ids = self.token_ids
        if self.finish_reason == "stop" and ids and ids[-1] in self.job.params.stop_token_ids:
            ids = ids[:-1]
        text = to_text(words, ids)
        at = self._stop_at(text, words)
        return text if at is None else text[:at]

    def stats(self, num_speculative_tokens: int) -> DecodeStats:
        """The counts so far, checked.

        Raises:
            IdentityError: the counts do not add up to the tokens.
        """
        stats = DecodeStats(num_speculative_tokens, tuple(self.drafted), tuple(self.accepted), self.num_cut)
        stats.check(len(self.token_ids))
        return stats

    def check_end(self, eos_ids: frozenset[int], words: Words) -> None:
        """Replay the rules of the end on the whole answer, which the loop applied token by token.

        Raises:
            IdentityError: tokens follow an EOS or a stop string, there are too many, or the finish reason is another's.
        """
        if self.error is not None:
            return
        before, last = self.token_ids[:-1], self.token_ids[-1]
        eos_ids, least = ends_of(self.job.params, eos_ids), self.job.params.min_tokens
        at = next((i for i, token in enumerate(before) if token in eos_ids), None)
        if at is not None:
            raise IdentityError(f"token {at} of {len(self.token_ids)} ends the answer, but others follow it")
        stops = bool(self.job.params.stop)
        if stops and self._stop_at(to_text(words, before), words) is not None:
            raise IdentityError(f"a stop string is complete before the last of {len(self.token_ids)} tokens")
        if len(self.token_ids) > self.max_tokens:
            raise IdentityError(f"{len(self.token_ids)} tokens, but at most {self.max_tokens} were asked for")
        ends = last in eos_ids or (stops and self._stop_at(to_text(words, self.token_ids), words) is not None)
        if last in eos_ids and len(before) < least:
            raise IdentityError(f"token {len(before)} ends the answer, but nothing may before {least} tokens")
        expected = "stop" if ends else "length"
        if self.finish_reason != expected:
            raise IdentityError(f"the answer ends by {expected}, but its finish reason is {self.finish_reason}")

    def _finished(self, token: int, ends: frozenset[int], words: Words) -> str | None:
        if token in ends:
            return "stop"
        # The whole text again, not only its tail: a token may complete a character and so change text before it.
        if self.job.params.stop and self._stop_at(to_text(words, self.token_ids), words) is not None:
            return "stop"
        return "length" if len(self.token_ids) >= self.max_tokens else None

    def _stop_at(self, text: str, words: Words) -> int | None:
        """Where the first stop string begins; one that is complete within the first `min_tokens` tokens does not count."""
        least = self.job.params.min_tokens
        held = len(to_text(words, self.token_ids[:least])) if least and self.job.params.stop else 0
        found = [text.find(s, max(0, held - len(s) + 1) if held else 0) for s in self.job.params.stop]
        return min((at for at in found if at >= 0), default=None)
