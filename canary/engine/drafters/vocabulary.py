"""Which words target and draft model share, and a draft model that speaks another vocabulary in the target's ids.

A word is shared where both tokenizers write the same token string and mean the same text by it. Text is never tokenised anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from canary.domain.errors import ModelError
from canary.engine.render import renderings

_FIELD = "subject.drafter.model"
_REMEDY = "Use a draft model that was made for this target."

# Of the target's words. One that the draft model lacks can never be accepted, and in its context it is a placeholder: below half
# there is more hole than text, and the two tokenizers most likely spell alike by accident (letters and digits).
LEAST_SHARED = 0.5

Spoken = tuple[PreTrainedModel, PreTrainedTokenizerBase]


@dataclass(frozen=True, slots=True)
class SharedWords:
    """How ids translate.

    Args:
        target_ids, draft_ids: [S] int64, the shared words side by side.
        vocab_size: width of the target's rows, V.
        draft_of: draft id of every target id, a placeholder where there is none; [V] int64.
        share: of the target's words that are shared.
    """

    target_ids: torch.Tensor
    draft_ids: torch.Tensor
    vocab_size: int
    draft_of: torch.Tensor
    share: float

    def to(self, device: torch.device) -> SharedWords:
        """The same on another device."""
        ids = (t.to(device) for t in (self.target_ids, self.draft_ids, self.draft_of))
        target_ids, draft_ids, draft_of = ids
        return SharedWords(target_ids, draft_ids, self.vocab_size, draft_of, self.share)

    def rows(self, logits: torch.Tensor) -> torch.Tensor:
        """Raw draft rows over the target's ids, [n, V_draft] to [n, V]: words that are not shared are impossible in them, so that
        what is processed, drawn from and reported is one and the same restricted row."""
        rows = logits.new_full((len(logits), self.vocab_size), -torch.inf)
        rows[:, self.target_ids] = logits[:, self.draft_ids]
        return rows


def shared_words(target: Spoken, draft: Spoken) -> SharedWords | None:
    """What the two have in common; None where ids and widths are equal, so that nothing needs translating.

    Raises:
        ModelError: names what differs in a way that matters: too few shared words, what begins or ends a text, chat template, or
            context.
    """
    (target_model, target_words), (draft_model, draft_words) = target, draft
    same = target_words.get_vocab() == draft_words.get_vocab()
    _require_same_roles(target_words, draft_words, by_id=same)
    if target_words.chat_template != draft_words.chat_template and renderings(target_words) != renderings(draft_words):
        raise _mismatch("chat template", "the two render a chat differently")
    contexts = target_model.config.max_position_embeddings, draft_model.config.max_position_embeddings
    if contexts[1] < contexts[0]:
        raise _mismatch("max_position_embeddings", f"{contexts[0]} and only {contexts[1]}")
    widths = int(target_model.config.vocab_size), int(draft_model.config.vocab_size)
    if same and widths[0] == widths[1]:
        return None
    return _intersection(target_words, draft_words, widths)


def _require_same_roles(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, *, by_id: bool) -> None:
    """With one vocabulary all special ids must agree; across two, the words that begin and end a text must."""
    roles = ("bos_token", "eos_token", "pad_token", "unk_token") if by_id else ("bos_token", "eos_token")
    for role in roles:
        name = f"{role}_id" if by_id else role
        ours, theirs = getattr(target, name), getattr(draft, name)
        if ours != theirs:
            raise _mismatch(name, f"{ours!r} and {theirs!r}")


def _intersection(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, widths: tuple[int, int]) -> SharedWords:
    ours, theirs = target.get_vocab(), draft.get_vocab()
    special = _special(target), _special(draft)
    pairs = sorted(
        (at, theirs[word])
        for word, at in ours.items()
        if word in theirs
        and at < widths[0]
        and theirs[word] < widths[1]
        and (word in special[0]) == (word in special[1])
        and (word in special[0] or _text(target, word) == _text(draft, word))
    )
    share = len(pairs) / len(ours)
    if share < LEAST_SHARED:
        raise _mismatch(
            "tokenizer vocabulary",
            f"it shares {len(pairs)} of {len(ours)} words, {share:.0%}, and drafts are worth nothing below {LEAST_SHARED:.0%}",
        )
    target_ids, draft_ids = (torch.tensor(ids, dtype=torch.int64) for ids in zip(*pairs, strict=True))
    draft_of = torch.full((widths[0],), _placeholder(draft), dtype=torch.int64)
    draft_of[target_ids] = draft_ids
    return SharedWords(target_ids, draft_ids, widths[0], draft_of, share)


def _special(words: PreTrainedTokenizerBase) -> set[str]:
    return {token.content for token in words.added_tokens_decoder.values() if token.special}


def _text(words: PreTrainedTokenizerBase, word: str) -> str:
    """What a token says; byte-level and sentence-piece vocabularies may spell one string and mean two texts."""
    return str(words.convert_tokens_to_string([word]))


def _placeholder(words: PreTrainedTokenizerBase) -> int:
    known = (i for i in (words.unk_token_id, words.pad_token_id, words.eos_token_id) if i is not None)
    return int(next(known, 0))


def _mismatch(what: str, how: str) -> ModelError:
    return ModelError(f"the draft model's {what} differs from the target's ({how})", where=_FIELD, remedy=_REMEDY)
