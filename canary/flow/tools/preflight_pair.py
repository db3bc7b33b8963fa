"""A draft model beside its target: what must be equal, what the drafter can map, and what only looks different."""

from __future__ import annotations

from collections.abc import Iterator

from canary.flow.tools.preflight_facts import SPECIAL, Finding, Level, RouteFacts, Tokenizer


def together(facts: RouteFacts) -> Iterator[Finding]:
    """Findings about a draft model and its target, both readable."""
    assert facts.draft is not None
    assert facts.target.tokenizer is not None
    assert facts.draft.tokenizer is not None
    target, draft = facts.target.tokenizer, facts.draft.tokenizer
    words = list(_words(facts, target, draft))
    yield from words
    mapped = facts.carried_share is not None
    yield from _special(target, draft, mapped=mapped)
    yield from _template(target, draft)
    yield from _cutting(target, draft, mapped=mapped)
    if facts.draft.head_width != facts.target.head_width and not words:
        widths = f"{facts.target.head_width} and {facts.draft.head_width}"
        sentence = f"The heads are {widths} columns wide, but no token has an id beyond {target.length - 1}: the rest is padding."
        yield Finding("draft.vocab_size", Level.NOTE, sentence)
    if facts.draft.max_positions < facts.target.max_positions:
        sentence = (
            f"The draft's context ends at {facts.draft.max_positions} tokens, the target's at {facts.target.max_positions}: a "
            "longer request could not be drafted for."
        )
        yield Finding("draft.max_position_embeddings", Level.REFUSED, sentence)
    if facts.draft.dtype != facts.target.dtype:
        sentence = (
            f"The draft computes in {facts.draft.dtype}, the target in {facts.target.dtype}; that changes acceptance alone."
        )
        yield Finding("draft.dtype", Level.NOTE, sentence)
    if target.kind != draft.kind:
        sentence = f"The tokenizers are of the classes {target.kind} and {draft.kind}, but cut and number every probe alike."
        yield Finding("draft.tokenizer_class", Level.NOTE, sentence)


def _words(facts: RouteFacts, target: Tokenizer, draft: Tokenizer) -> Iterator[Finding]:
    if target.words == draft.words:
        return
    odd = sorted(w for w in target.words.keys() & draft.words.keys() if target.words[w] != draft.words[w])
    alone = sorted(target.words.keys() ^ draft.words.keys())
    added = sorted((target.added.keys() ^ draft.added.keys()) & set(alone))
    if odd:
        word = odd[0]
        what, field = "gives words other ids", "draft.vocabulary.ids"
        how = f"{len(odd)} words, the first is {word!r}: {target.words[word]} and {draft.words[word]}"
    elif added:
        what, field = "has other added tokens", "draft.added_tokens"
        how = f"{len(added)}, the first is {added[0]!r}"
    else:
        what, field = "knows other words", "draft.vocabulary"
        how = f"{len(alone)}, the first is {alone[0]!r}"
    if facts.carried_share is not None:
        sentence = (
            f"The draft's tokenizer {what} ({how}); the drafter maps the {100 * facts.carried_share:.3g} % that both have and "
            "drafts within them, which is lossless and may accept less."
        )
        yield Finding(field, Level.CARRIED, sentence)
        return
    why = f"; they cannot be mapped: {facts.unmapped}" if facts.unmapped else ""
    yield Finding(field, Level.REFUSED, f"The draft's tokenizer {what} ({how}){why}.")


def _special(target: Tokenizer, draft: Tokenizer, *, mapped: bool) -> Iterator[Finding]:
    meaning = {
        "bos_token_id": "texts would begin otherwise",
        "eos_token_id": "the draft would end an answer with another token",
        "pad_token_id": "padding would be read as text",
        "unk_token_id": "unknown words would become other tokens",
    }
    for name in SPECIAL:
        if target.special[name] == draft.special[name]:
            continue
        ours, theirs = target.special_word(name), draft.special_word(name)
        how = f"{target.special[name]} ({ours!r}) in the target and {draft.special[name]} ({theirs!r}) in the draft"
        if mapped and name in ("pad_token_id", "unk_token_id"):
            yield Finding(f"draft.{name}", Level.NOTE, f"{name} is {how}; mapped drafts never need it.")
        elif ours == theirs:
            yield Finding(f"draft.{name}", Level.CARRIED, f"{name} is {how}: the same token under another id.")
        else:
            yield Finding(f"draft.{name}", Level.REFUSED, f"{name} is {how}: {meaning[name]}.")


def _template(target: Tokenizer, draft: Tokenizer) -> Iterator[Finding]:
    if target.template == draft.template:
        return
    if target.renderings == draft.renderings:
        sentence = f"The chat templates are other texts, but render all {len(target.renderings)} probe chats alike."
        yield Finding("draft.chat_template", Level.NOTE, sentence)
        return
    at = next(i for i, (a, b) in enumerate(zip(target.renderings, draft.renderings, strict=True)) if a != b)
    a, b = target.renderings[at], draft.renderings[at]
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = max(0, start - 8)
    sentence = (
        f"The chat templates render a chat differently ({a[start : start + 24]!r} and {b[start : start + 24]!r}): the draft was "
        "made for another framing."
    )
    yield Finding("draft.chat_template", Level.REFUSED, sentence)


def _cutting(target: Tokenizer, draft: Tokenizer, *, mapped: bool) -> Iterator[Finding]:
    for ours, theirs in zip(target.pieces, draft.pieces, strict=True):
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
            shown = f"{list(ours[at : at + 4])} and {list(theirs[at : at + 4])}"
            why = "the draft reads words cut as it was not made for" if mapped else "normaliser or pre-tokenizer are not the same"
            sentence = f"The tokenizers cut the same text differently ({shown}): {why}."
            yield Finding("draft.tokenizer.cutting", Level.CARRIED if mapped else Level.REFUSED, sentence)
            return
    for ours, theirs in zip(target.framed, draft.framed, strict=True):
        if ours != theirs:
            shown = f"{list(ours[:2])} and {list(theirs[:2])}"
            sentence = f"Only one of the tokenizers adds a token to a text by itself ({shown}), such as a first bos."
            yield Finding("draft.tokenizer.adds", Level.CARRIED if mapped else Level.REFUSED, sentence)
            return
