"""Drafters that copy or run a draft model: what they propose, and that they forget."""

from __future__ import annotations

import random

import torch

from canary.domain.pairs import DrafterKind
from canary.domain.traffic import SamplingParams
from canary.engine import sampling, streams
from canary.engine.drafters.base import Round
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.ngram import History, NgramDrafter
from canary.engine.rows import Rows
from tests.engine.tiny import VOCAB, tiny_model


def asked(limits: tuple[int, ...], temperature: float = 0.0) -> Round:
    n = len(limits)
    rows = None if temperature == 0 else Rows.of([SamplingParams(9, temperature=temperature)] * n)
    return Round(limits, rows, torch.arange(2 * n).view(n, 2), torch.full((n,), 5))


def slow_match(ids: list[int], limit: int, longest: int) -> list[int]:
    """The rule, written down naively."""
    for n in range(min(longest, len(ids)), 0, -1):
        for start in range(len(ids) - n - 1, -1, -1):
            if ids[start : start + n] == ids[-n:]:
                found = ids[start + n :]
                return [found[i % len(found)] for i in range(limit)]
    return []


def test_ngram_is_the_most_recent_longest_match() -> None:
    rng = random.Random(4)
    for _ in range(200):
        history, ids = History(3), []
        for _ in range(rng.randint(1, 4)):
            more = [rng.randint(0, 4) for _ in range(rng.randint(1, 9))]
            history.extend(more)
            ids += more
            assert history.draft(4) == slow_match(ids, 4, 3)


def test_ngram_prefers_recent_and_long() -> None:
    history = History(3)
    history.extend([1, 2, 3, 7, 9, 2, 3, 8, 5, 1, 2, 3])
    assert history.draft(2) == [7, 9]
    history.extend([4, 2, 3])
    assert history.draft(2) == [4, 2]
    history.extend([99])
    assert history.draft(2) == []


def test_ngram_rows_share_nothing_and_end() -> None:
    drafter = NgramDrafter(2, 3)
    drafter.begin(0, [1, 2, 3, 1], 20)
    drafter.begin(1, [5, 6], 20)
    proposal = drafter.propose(asked((3, 3)))
    assert (proposal.lengths, proposal.tokens[0].tolist()) == ((3, 0), [2, 3, 1])
    drafter.commit(1, [1], 0)
    assert drafter.propose(asked((3, 3))).lengths == (3, 0)
    drafter.end(0)
    drafter.move(1, 0)
    drafter.begin(1, [1, 1], 20)
    assert drafter.propose(asked((2, 1))).lengths == (0, 1)


@torch.inference_mode()
def test_draft_model_draws_from_the_rows_that_it_reports() -> None:
    model = tiny_model()
    drafter = DraftModelDrafter(model, 2)
    texts = [[5, 6, 7], [8, 9]]
    for row, text in enumerate(texts):
        drafter.begin(row, text, 30)
        drafter.commit(row, [11 + row], 0)
    asking = asked((3, 3), temperature=0.8)
    proposal = drafter.propose(asking)
    assert drafter.kind is DrafterKind.DENSE
    assert proposal.probs is not None
    for row, text in enumerate(texts):
        prefix = [*text, 11 + row]
        for i, token in enumerate(proposal.tokens[row].tolist()):
            logits = model(torch.tensor([prefix])).logits[0, -1:]
            probs = sampling.process(logits, Rows.of([SamplingParams(9, temperature=0.8)]))
            assert torch.allclose(proposal.probs[row, i], probs[0], atol=1e-4)
            position = torch.tensor([[5 + i]])
            uniform = streams.uniforms(asking.keys[row : row + 1], streams.Stream.DRAFT, position)[:, 0]
            assert sampling.draw(proposal.probs[row : row + 1, i], uniform).tokens.tolist() == [token]
            prefix.append(token)


@torch.inference_mode()
def test_draft_model_follows_every_kind_of_commit() -> None:
    """After full acceptance, rejection, and rounds it was not asked in, it drafts what a fresh one would."""
    model, rng = tiny_model(), random.Random(2)
    drafter, text = DraftModelDrafter(model, 1), [5, 6, 7]
    drafter.begin(0, text, 120)
    drafter.commit(0, [8], 0)
    text = [*text, 8]
    for turn in range(20):
        drafts = drafter.propose(asked((3,))).tokens[0].tolist() if turn % 4 != 3 else []
        fresh = DraftModelDrafter(model, 1)
        fresh.begin(0, text[:-1], 120)
        fresh.commit(0, text[-1:], 0)
        assert not drafts or drafts == fresh.propose(asked((3,))).tokens[0].tolist()
        accepted = rng.randint(0, len(drafts))
        emitted = [*drafts[:accepted], rng.randint(3, VOCAB - 1)]
        drafter.commit(0, emitted, accepted)
        text = [*text, *emitted]
