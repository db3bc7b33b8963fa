"""Rounds that are judged together must not share random numbers: what a round has looked at is known to the next one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from canary.domain.errors import ModelError
from canary.domain.pairs import BLOCK_COLUMNS, TRACE_COLUMNS, Arm, DecodeStats, Generation, Pair, Scheme
from canary.domain.policy import Drafter, Gates, Shadow, Subject
from canary.domain.traffic import Message, Prompt, SamplingParams, Stratum
from canary.engine.decode import Decoder
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.drawing import Drawing
from canary.engine.forward import RowForward
from canary.engine.hooks import METHODS, Hooks
from canary.engine.runner import OwnEngine
from canary.engine.sampling import draw
from canary.engine.streams import ROUND_SPACING, Stream, uniforms
from canary.engine.verify_block import verify_block
from canary.flow.ports import ArmRequest
from canary.stats.battery import Battery
from canary.stats.part import Context
from tests.engine.tiny import job, noisy_copy, prompts, save_tiny, tiny_model, tiny_tokenizer

SHADOW = Shadow(batch_size=3, max_tokens=20)
VOCAB, K, LENGTH, REQUESTS = 3, 3, 4, 30_000


def rows(seed: int) -> Tensor:
    """Rows by the last two tokens, [VOCAB + 1, VOCAB + 1, VOCAB]; VOCAB stands where there is none."""
    logits = torch.randn(VOCAB + 1, VOCAB + 1, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (1.5 * logits).softmax(-1)


def texts(target: Tensor, draft: Tensor, spacing: int) -> Tensor:
    """First tokens of many requests, every one with a key of its own: [REQUESTS, LENGTH]."""
    keys = torch.stack([torch.arange(REQUESTS), torch.full((REQUESTS,), 7)], 1)
    text = torch.full((REQUESTS, 2 + LENGTH + K + 1), VOCAB)
    count = torch.zeros(REQUESTS, dtype=torch.int64)
    while len(going := (count < LENGTH).nonzero()[:, 0]):
        start, key = count[going, None] * spacing, keys[going]
        last, drafts, p, q = text[going[:, None], count[going, None] + torch.arange(2)], [], [], []
        for column in range(K):
            p.append(target[last[:, 0], last[:, 1]])
            q.append(draft[last[:, 0], last[:, 1]])
            drafts.append(draw(q[-1], uniforms(key, Stream.DRAFT, start + column)[:, 0]).tokens)
            last = torch.stack([last[:, 1], drafts[-1]], 1)
        p.append(target[last[:, 0], last[:, 1]])
        columns = start + torch.arange(K + 1)
        accept, following = uniforms(key, Stream.ACCEPT, columns[:, :K]), uniforms(key, Stream.SAMPLE, columns)
        found = verify_block(
            torch.stack(p, 1), torch.stack(drafts, 1), torch.full_like(going, K), torch.stack(q, 1), accept, following
        )
        written = torch.cat([torch.stack(drafts, 1), found.next_token[:, None]], 1)
        written = written.scatter(1, found.num_accepted[:, None], found.next_token[:, None])
        text[going[:, None], 2 + count[going, None] + torch.arange(K + 1)] = written
        count[going] += found.num_accepted + 1
    return text[:, 2 : 2 + LENGTH]


@pytest.mark.parametrize(("spacing", "exact"), [(ROUND_SPACING, True), (1, False)])
def test_numbers_drawn_again_at_their_position_would_break_it(spacing: int, exact: bool) -> None:
    target, draft = rows(1), rows(2)
    found = texts(target, draft, spacing)
    places = (found * VOCAB ** torch.arange(LENGTH)).sum(1).bincount(minlength=VOCAB**LENGTH)
    every = torch.cartesian_prod(*[torch.arange(VOCAB)] * LENGTH).flip(1)  # in the order of `places`
    padded = torch.cat([torch.full((len(every), 2), VOCAB), every], 1)
    chance = torch.ones(len(every), dtype=torch.float64)
    for at in range(LENGTH):
        chance *= target[padded[:, at], padded[:, at + 1]].gather(1, every[:, at : at + 1])[:, 0]
    p_value = chisquare(places.numpy(), (chance * REQUESTS).numpy()).pvalue
    assert (p_value > 1e-3) if exact else (p_value < 1e-9)


def counted(hooks: Hooks) -> tuple[Hooks, dict[int, list[tuple[int, int]]]]:
    """Hooks that note every (key, position) that a stream is asked for."""
    asked: dict[int, list[tuple[int, int]]] = {stream: [] for stream in Stream}

    def noting(keys: Tensor, stream: Stream | Tensor, positions: Tensor) -> Tensor:
        streams = torch.as_tensor(stream).expand(positions.shape).flatten().tolist()
        owners = keys[:, :1].expand(positions.shape).flatten().tolist()
        for each, owner, position in zip(streams, owners, positions.flatten().tolist(), strict=True):
            asked[each].append((owner, position))
        return hooks.uniforms(keys, stream, positions)

    return replace(hooks, uniforms=noting), asked


def loop(hooks: Hooks) -> Decoder:
    model = tiny_model(eos=False)
    drafter = DraftModelDrafter(noisy_copy(model), 4, Drawing(hooks.draw, hooks.uniforms))
    return Decoder(RowForward(model, 4), tiny_tokenizer(), frozenset(), drafter, 4, hooks=hooks)


@pytest.mark.parametrize("scheme", [Scheme.TOKEN, Scheme.BLOCK])
def test_the_loop_draws_no_number_twice_where_drafts_are_judged_together(scheme: Scheme) -> None:
    hooks, asked = counted(METHODS[scheme])
    done = list(loop(hooks).run([job(i, p, 24, temperature=1.0) for i, p in enumerate(prompts(5, seed=3))], traced=True))
    assert len(done) == 5
    for stream in (Stream.ACCEPT, Stream.DRAFT):
        assert (len(asked[stream]) == len(set(asked[stream]))) is (scheme is Scheme.BLOCK)
    for running in done:
        assert running.record is not None
        running.stats(4).check(24)
        data = running.record.columns().data
        assert (set(BLOCK_COLUMNS) <= set(data)) is (scheme is Scheme.BLOCK)


def test_a_request_gives_the_same_tokens_alone_and_in_any_batch() -> None:
    jobs = [job(i, p, 12, temperature=0.9) for i, p in enumerate(prompts(5, seed=4))]
    together = {r.job.index: r.token_ids for r in loop(METHODS[Scheme.BLOCK]).run(jobs)}
    for each in jobs:
        (alone,) = loop(METHODS[Scheme.BLOCK]).run([each])
        assert alone.token_ids == together[each.index]


def test_greedy_and_undrafted_answers_do_not_depend_on_the_method() -> None:
    jobs = [job(i, p, 12, temperature=0.0) for i, p in enumerate(prompts(4, seed=5))]
    by = {scheme: {r.job.index: r.token_ids for r in loop(hooks).run(jobs)} for scheme, hooks in METHODS.items()}
    assert by[Scheme.TOKEN] == by[Scheme.BLOCK]
    sampled = [job(i, p, 1, temperature=1.0) for i, p in enumerate(prompts(5, seed=6))]
    plain = {scheme: {r.job.index: r.token_ids for r in loop(hooks).run(sampled)} for scheme, hooks in METHODS.items()}
    assert plain[Scheme.TOKEN] == plain[Scheme.BLOCK]


def subject(directory: Path, **changes: object) -> Subject:
    target = save_tiny(directory / "target", tiny_model(loopy=True, seed=3))
    draft = save_tiny(directory / "draft", noisy_copy(tiny_model(loopy=True, seed=3)))
    drafter = replace(Drafter("draft_model", 3, model=str(draft)), **changes)  # type: ignore[arg-type]
    return Subject("own", str(target), drafter, "float32")


def answers(engine: OwnEngine, temperature: float) -> list[Generation]:
    params = SamplingParams(20, temperature=temperature)
    prompt = Prompt("s", "1", "r", "chat/completions", b"", (Message("user", "again and again and again"),), None, params)
    return engine.generate([ArmRequest(prompt, params, bytes([i]) * 16) for i in range(3)], Arm.CANDIDATE)


def test_a_policy_chooses_the_method_and_it_is_part_of_the_epoch(tmp_path: Path) -> None:
    made = subject(tmp_path, verification="block")
    other = replace(made, drafter=replace(made.drafter, verification="token"))
    block, token = (OwnEngine.open(each, SHADOW, tmp_path) for each in (made, other))
    assert block.info.described["verification"] == "block"
    assert block.info.fingerprint != token.info.fingerprint
    assert [g.token_ids for g in answers(block, 0.0)] == [g.token_ids for g in answers(token, 0.0)]
    for engine, columns in ((block, {*TRACE_COLUMNS, *BLOCK_COLUMNS}), (token, set(TRACE_COLUMNS))):
        for got in answers(engine, 1.0):
            assert got.trace is not None
            assert set(got.trace.data) == columns
            got.stats.check(len(got.token_ids))
    gates, info = Gates(), block.info
    battery = Battery(Context(gates, gates.alpha, info.drafter_kind, 3, True, info.vocab_size, scheme=Scheme.BLOCK))
    for at, got in enumerate(answers(block, 1.0)):
        steps = (0,) * len(got.token_ids)
        plain = replace(got, arm=Arm.BASELINE, stats=DecodeStats(0, steps, steps), trace=None)
        pair = Pair("0" * 32, "r", "e", 1, at, Stratum.SAMPLED, Arm.BASELINE, plain, got, b"")
        assert battery.problem(pair) is None


def test_an_unknown_method_names_its_field(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as refused:
        OwnEngine.open(subject(tmp_path, verification="blocks"), SHADOW, tmp_path)
    assert refused.value.where == "subject.drafter.verification"
