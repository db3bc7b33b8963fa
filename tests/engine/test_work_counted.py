"""Work is counted, never timed: target forwards by the accept counts, one read of the device a step, memory by its formula."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from transformers import PreTrainedModel

from canary.domain.pairs import DrafterKind
from canary.domain.traffic import SamplingParams
from canary.engine import sampling
from canary.engine.decode import Decoder
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.forward import RowForward
from canary.engine.hooks import CLEAN, METHODS, Hooks, of_verification
from canary.engine.record import Line, Step
from canary.engine.requests import Job
from canary.engine.rows import Rows
from tests.engine.counting import expected_steps, forwards, live_tensors, reads, set_apart, without_data
from tests.engine.tiny import DRAFTERS, decoder, job, prompts, run_all, tiny_model, tiny_tokenizer

NAMES = [name for name in DRAFTERS if name not in ("target_itself", "exit_at_the_end")]
PROMPTS = prompts(8, seed=5, shortest=8)
PENALISED = {
    "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2, "bad_words": ("ab", "c"), "min_tokens": 3,
    "logit_bias": ((4, 1.0),),
}  # fmt: skip
SAMPLED = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "top_k": {"temperature": 0.8, "top_k": 7},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "typical_p": {"temperature": 0.8, "typical_p": 0.9},
    "penalised": {"temperature": 0.8} | PENALISED,
    "penalised_greedy": {"temperature": 0.0} | PENALISED,
    "logprobs": {"temperature": 0.8, "logprobs": 3},
    "greedy_logprobs": {"temperature": 0.0, "logprobs": 2} | PENALISED,
    "all": {"temperature": 0.8, "logprobs": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95} | PENALISED,
}


@lru_cache(maxsize=1)
def model() -> PreTrainedModel:
    return tiny_model("llama", loopy=True, seed=3)


@lru_cache(maxsize=8)
def loop_of(drafter: str) -> Decoder:
    return decoder(model(), drafter, rows=3, k=2)


def mixed(name: str) -> list[Job]:
    """Two requests of one setting, and a greedy one that ends first and one that follows it: rows of both kinds in a step."""
    fields = (SAMPLED[name], {"temperature": 0.0}, SAMPLED[name], {"temperature": 0.0})
    return [job(i, p, new, **each) for i, (p, new, each) in enumerate(zip(PROMPTS, (9, 4, 9, 6), fields, strict=False))]


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("drafter", NAMES)
def test_target_forwards_follow_from_the_accept_counts(drafter: str, rows: int) -> None:
    """Emitted = accepted + one per forward that a request took part in - cut, and no forward beside those."""
    loop = decoder(model(), drafter, rows=rows)
    with forwards(loop) as seen:
        done = run_all(loop, [job(i, p, 12 - i % 5, temperature=0.7 * (i % 2)) for i, p in enumerate(PROMPTS)])
    for running in done:
        assert len(running.token_ids) == sum(running.accepted) + len(running.accepted) - running.num_cut
    steps = [len(running.accepted) - 1 for running in done]
    widths = [width for _, width in seen if width]
    filled = [num for num, width in seen if not width]
    assert (sum(filled), filled[0]) == (len(PROMPTS), rows if loop.target.fills_together else 1), "each prompt once"
    assert sum(num for num, width in seen if width) == sum(steps)
    admitted = sorted(done, key=lambda running: -running.job.params.max_tokens)
    assert len(widths) == expected_steps([len(running.accepted) - 1 for running in admitted], rows)
    assert set(widths) <= {1, loop.k + 1}
    assert (drafter == "none") == (sum(sum(running.accepted) for running in done) == 0)


def test_the_schedule_itself() -> None:
    assert expected_steps([3, 0, 2], 1) == 5
    assert expected_steps([3, 0, 2, 4], 2) == 6
    assert expected_steps([3, 1, 2], 8) == 3


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("drafter", ["none", "ngram", "draft_model"])
def test_the_host_reads_once_a_step(monkeypatch: pytest.MonkeyPatch, drafter: str, name: str) -> None:
    """Of the sampler's two ways to the nucleus, the one for a CPU may ask as often as it likes: there it waits for nothing."""
    monkeypatch.setattr(sampling, "_nucleus_of_few", sampling._nucleus)
    counts, done = reads(monkeypatch, loop_of(drafter), mixed(name))
    assert [running.error for running in done] == [None] * len(done)
    assert (drafter == "none") == (sum(sum(running.drafted) for running in done) == 0)
    assert len(counts) > len(done)
    assert set(counts) == {1}


@pytest.mark.parametrize(
    ("drafter", "hooks"),
    [
        ("draft_model", METHODS["block"]),
        ("ngram", of_verification("token", DrafterKind.ONE_HOT)),
        ("early_exit", CLEAN),
        ("heads", CLEAN),
        ("composite", METHODS["block"]),
    ],
)
def test_every_way_to_judge_reads_once_a_step(monkeypatch: pytest.MonkeyPatch, drafter: str, hooks: Hooks) -> None:
    loop = decoder(model(), drafter, k=2)
    loop.hooks = hooks
    assert set(reads(monkeypatch, loop, mixed("plain"))[0]) == {1}


def test_another_read_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts above would say little if a read could hide from them."""
    assert max(reads(monkeypatch, loop_of("none"), mixed("top_p"))[0]) > 1
    for read in (lambda t: t.tolist(), lambda t: bool((t > 0).any()), lambda t: t[t > 0], lambda t: int(t.sum()), torch.unique):

        def logits(raw: torch.Tensor, read: object = read) -> torch.Tensor:
            read(raw)  # type: ignore[operator]
            return raw

        loop = decoder(model())
        loop.hooks = Hooks(logits=logits)
        assert max(reads(monkeypatch, loop, mixed("greedy"))[0]) > 1, read


def on_nothing(monkeypatch: pytest.MonkeyPatch, name: str, method: str = "token") -> Decoder:
    """A loop on a device that has shapes and no numbers, where any read raises; the one that every step may have is made up."""

    def read(self: Step) -> tuple[list[Line], list[object]]:
        assert self.verified.next_token.device.type == "meta"
        told = [] if self.logprobs is None else torch.zeros(self.logprobs.shape).tolist()
        return [Line([5] * (drafted // 2) + [7], drafted, drafted // 2, True) for drafted in self.proposal.lengths], told

    monkeypatch.setattr(Step, "read", read)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)  # which needs a real device
    model, drafters = without_data()
    target = RowForward(model, 3)
    drafter = None if name == "none" else drafters[name](target)
    return Decoder(target, tiny_tokenizer(), frozenset(), drafter, 2 if drafter else 0, hooks=METHODS[method])


@pytest.mark.parametrize(("drafter", "method"), [("adaptive", "token"), ("heads", "token"), ("composite", "block")])
def test_nothing_else_of_a_step_needs_a_number_from_the_device(
    monkeypatch: pytest.MonkeyPatch, drafter: str, method: str
) -> None:
    done = run_all(on_nothing(monkeypatch, drafter, method), mixed("all")[:2])
    assert [len(running.token_ids) for running in done] == [running.job.params.max_tokens for running in done]


def test_a_device_without_numbers_sees_every_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_nucleus", sampling._nucleus_of_few)
    with pytest.raises(NotImplementedError, match="meta"):
        run_all(on_nothing(monkeypatch, "none"), mixed("top_p"))

    def asking(raw: torch.Tensor) -> torch.Tensor:
        assert bool(raw.isfinite().all())
        return raw

    loop = on_nothing(monkeypatch, "none")
    loop.hooks = Hooks(logits=asking)
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        run_all(loop, mixed("greedy"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("vocab", [1, 97, 2000])
def test_both_ways_to_the_nucleus_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, vocab: int, dtype: torch.dtype) -> None:
    """Flat rows, peaked rows, ties, rows without numbers, and masses from nothing to all."""
    generator = torch.Generator().manual_seed(0)
    top_p = [0.0, 1e-6, 0.05, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 0.9999]
    rows = Rows.of([SamplingParams(1, temperature=1.0, top_p=p) for p in top_p])
    for scale in (0.0, 0.1, 1.0, 3.0, 10.0, 60.0):
        logits = (torch.randn(len(top_p), vocab, generator=generator, dtype=torch.float64) * scale).to(dtype)
        for given in (logits, logits.round(), logits.bfloat16().to(dtype), logits.masked_fill(logits < 0, -torch.inf)):
            given[3, 0] = torch.nan
            few = sampling._top_p(given, rows)
            with monkeypatch.context() as patched:
                patched.setattr(sampling, "_nucleus_of_few", sampling._nucleus)
                assert torch.equal(sampling._top_p(given, rows).nan_to_num(7.0), few.nan_to_num(7.0))


def memory_of(drafter: str, requests: int) -> None:
    """Caches hold what their formula says, and after many requests nothing is alive that was not after a few."""
    texts = prompts(40, seed=4, longest=20)
    model()
    with set_apart():
        loop = decoder(model(), drafter, rows=8, k=2)

        def turn(at: int) -> None:
            run_all(loop, [job(i, t, 1 + (i + at) % 2, temperature=i % 2, top_p=0.9) for i, t in enumerate(texts)])

        run_all(loop, [job(0, max(texts, key=len), 4)])
        turn(0)
        proposing = getattr(loop.drafter, "_fallback", loop.drafter)  # of a composite
        caches = [loop.target.cache, *([proposing.rows.cache] if isinstance(proposing, DraftModelDrafter) else [])]
        held, alive = [cache.num_bytes for cache in caches], live_tensors()
        for cache in caches:  # 2 x layers x rows x key heads x capacity x head width x bytes
            assert cache.num_bytes == 2 * 2 * 8 * 2 * cache.capacity * 16 * 4
        assert alive[1] >= sum(held)
        for at in range(requests // len(texts)):
            turn(at)
        assert [cache.num_bytes for cache in caches] == held
        assert live_tensors() == alive


def test_memory_does_not_grow() -> None:
    """With a drafter that has a cache of its own, and one that has histories; the others at full size only."""
    memory_of("composite", 200)


def test_a_kept_tensor_is_seen() -> None:
    with set_apart():
        before = live_tensors()
        kept = torch.zeros(3)
        assert live_tensors() == (before[0] + 1, before[1] + kept.numel() * 4)
