"""Bias, penalties, bans and minimum length: token-exact under greedy, row-exact under sampling, drafted or not."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from transformers import PreTrainedModel

from canary.domain.traffic import SamplingParams
from canary.engine import asked, penalties, reference
from canary.engine.decode import Decoder
from canary.engine.faults import FAULTS
from canary.engine.hooks import CLEAN
from canary.engine.penalties import Prefixes, Shaping, shape
from canary.engine.requests import Running
from canary.engine.score import score
from tests.engine.asking import expected_rows, generated, settings
from tests.engine.tiny import EOS, decoder, job, prompts, run_all, tiny_model, tiny_tokenizer

WORDS = tiny_tokenizer()
PROMPTS = prompts(4, seed=3, shortest=8)
NEW, LONG = 12, 16
NAMES = list(settings(WORDS, list(range(10, 20))))
SAMPLED = {
    "min_p": {"min_p": 0.2},
    "typical_p": {"typical_p": 0.6},
    "everything": {
        "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.9, "repetition_penalty": 1.3,
        "presence_penalty": 0.5, "frequency_penalty": 0.4, "logit_bias": ((20, 2.0), (31, -3.0)), "bad_words": ("a", "bc", "!"),
        "min_tokens": 5, "stop_token_ids": (40, 41),
    },
}  # fmt: skip


@lru_cache(maxsize=1)
def model() -> PreTrainedModel:
    return tiny_model("llama", loopy=True, seed=3)


@lru_cache(maxsize=1)
def free() -> list[list[int]]:
    loop = decoder(model())
    loop.eos_ids = frozenset()
    return [r.token_ids for r in run_all(loop, [job(i, p, NEW) for i, p in enumerate(PROMPTS)])]


def asking(name: str) -> list[dict[str, object]]:
    return [settings(WORDS, answer)[name] for answer in free()]


@lru_cache(maxsize=32)
def wanted(name: str) -> list[list[int]]:
    found = []
    for prompt, fields in zip(PROMPTS, asking(name), strict=True):
        params = SamplingParams(NEW, temperature=0.0, **fields)  # type: ignore[arg-type]
        ends = asked.ends_of(params, frozenset({EOS}))
        found.append(generated(model(), prompt, params, asked.bans(params, WORDS, ends), sorted(ends)))
    return found


@pytest.mark.parametrize("drafter", ["none", "ngram", "draft_model"])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_equals_generate(name: str, drafter: str) -> None:
    """Four together, and one of them alone."""
    jobs = [job(i, p, NEW, **fields) for i, (p, fields) in enumerate(zip(PROMPTS, asking(name), strict=True))]
    assert [r.token_ids for r in run_all(decoder(model(), drafter, rows=4), jobs)] == wanted(name)
    assert run_all(decoder(model(), drafter, rows=1), jobs[2:3])[0].token_ids == wanted(name)[2]


@pytest.mark.parametrize("drafter", ["ngram", "draft_model"])
def test_tracing_changes_no_token(drafter: str) -> None:
    jobs = [job(i, p, NEW, **fields) for i, (p, fields) in enumerate(zip(PROMPTS, asking("all"), strict=True))]
    assert [r.token_ids for r in run_all(decoder(model(), drafter), jobs, traced=True)] == wanted("all")


@pytest.mark.parametrize("name", [n for n in NAMES if n != "ignore_eos"])
def test_the_settings_bite(name: str) -> None:
    """Equality above would say little about parameters that change nothing."""
    assert wanted(name) != free()


@pytest.mark.parametrize("drafter", ["ngram", "draft_model"])
def test_drafts_are_accepted_and_rejected_under_penalties(drafter: str) -> None:
    done = run_all(decoder(model(), drafter), [job(i, p, NEW, repetition_penalty=1.1) for i, p in enumerate(PROMPTS)])
    accepted, drafted = (sum(sum(getattr(r, name)) for r in done) for name in ("accepted", "drafted"))
    assert 0 < accepted < drafted


def test_a_drafter_with_the_same_pipeline_is_always_accepted() -> None:
    """The draft's rows see what the target's see: prompt, answer and the drafts before them."""
    loop = decoder(model(), "target_itself")
    fields = {name: value for name, value in SAMPLED["everything"].items() if name != "stop_token_ids"}
    for each in ({**fields}, {**fields, "temperature": 0.0}):
        done = run_all(loop, [job(i, p, NEW, **{"temperature": 1.0} | each) for i, p in enumerate(PROMPTS)])
        assert sum(sum(r.drafted) for r in done) > 30
        assert [r.accepted for r in done] == [r.drafted for r in done]


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("drafter", ["none", "ngram", "draft_model"])
@pytest.mark.parametrize("name", SAMPLED)
def test_processed_rows_equal_transformers_at_every_position(name: str, drafter: str, rows: int) -> None:
    loop = decoder(model(), drafter, rows=rows)
    loop.traces = True
    jobs = [job(i, p, NEW, **{"temperature": 1.0} | SAMPLED[name]) for i, p in enumerate(PROMPTS)]
    for running in run_all(loop, jobs, traced=True):
        assert running.error is None
        found = running.record and running.record.processed_rows()
        assert found is not None
        assert float((found - expected_rows(running)).abs().max()) < 1e-5


def test_every_column_of_a_round_is_bit_equal_to_transformers() -> None:
    """Rejected columns too: random rows, drafts that repeat themselves, the prompt and the answer."""
    generator = torch.Generator().manual_seed(0)
    params = [job(0, (), 9, **fields).params for fields in (SAMPLED["everything"], {}, {"bad_words": ("ab",)})]
    spelt = [WORDS(text, add_special_tokens=False)["input_ids"] for text in ("ab", "abc", "xx")]
    said = [list(ids) for ids in spelt]
    ends = [asked.ends_of(p, frozenset({EOS})) for p in params]
    shapings = [
        Shaping((60, 61, 60), p, asked.bans(p, WORDS, e), e) if p.shaped else None for p, e in zip(params, ends, strict=True)
    ]
    prefixes = Prefixes.of(shapings, said, 97)
    drafts = torch.tensor([[*spelt[0], 60, 40], [5, 6, 7, 8], [*spelt[0], *spelt[0]]])
    for _ in range(3):
        logits = torch.randn(3, 5, 97, generator=generator) * 3
        found = shape(logits, drafts, prefixes)
        for row in range(3):
            answer = [*said[row], *drafts[row].tolist()]
            columns = reference.shapers(shapings[row])
            for at in range(5):
                before = torch.tensor([[60, 61, 60, *answer[: len(said[row]) + at]]])
                assert torch.equal(found[row, at], columns(before, logits[row, at][None])[0] if columns else logits[row, at])
        for row in range(3):  # two drafts are accepted, the others leave nothing behind
            said[row] += drafts[row, :2].tolist()


def distances(loop: Decoder, **params: object) -> torch.Tensor:
    """Where the loop's rows or tokens are not the reference's: 1 or a gap, for every token of every answer."""
    found = []
    for running in run_all(loop, [job(i, p, LONG, **params) for i, p in enumerate(PROMPTS)], traced=True):
        kept = running.record
        assert kept is not None
        args = (model(), running.job.token_ids, running.token_ids, kept.rows(), running.job.params, kept.processed_rows())
        rows = score(*args, shaping=running.shaping)
        for name in ("row_tv", "logit_gap") if running.job.greedy else ("row_tv",):
            found.append(torch.frombuffer(bytearray(rows.data[name]), dtype=torch.float32))
    return torch.cat(found)


def broken(name: str | None, drafter: str = "draft_model") -> Decoder:
    loop = decoder(model(), drafter)
    loop.hooks = CLEAN if name is None else FAULTS[name].inject(CLEAN)
    return loop


PLANTED = {
    "penalties_ignored": {"frequency_penalty": 1.0},
    "penalties_frozen": {"frequency_penalty": 1.0},
    "rejected_drafts_counted": {"frequency_penalty": 1.0},
    "bias_on_bonus_only": {"logit_bias": ((40, 4.0), (41, 4.0), (42, 4.0)), "bad_words": ("a", "b", "c")},
    "min_p_ignored": {"min_p": 0.3},
}


@pytest.mark.parametrize(
    ("name", "temperature"), [(n, t) for n in PLANTED for t in (0.0, 1.0) if (n, t) != ("min_p_ignored", 0.0)]
)
def test_a_planted_violation_is_seen_and_the_clean_loop_is_not(name: str, temperature: float) -> None:
    asked_for = PLANTED[name] | {"temperature": temperature}
    assert float(distances(broken(None), **asked_for).max()) < 1e-3
    assert (distances(broken(name), **asked_for) > 0.05).sum() >= 2


def test_a_minimum_length_that_is_one_short_breaks_the_replay_of_the_end() -> None:
    ends = tuple(range(3, 97, 2))
    clean = run_all(broken(None), [job(i, p, NEW, stop_token_ids=ends, min_tokens=4) for i, p in enumerate(PROMPTS)])
    assert all(len(r.token_ids) > 4 for r in clean)
    assert {r.finish_reason for r in clean} == {"stop"}
    with pytest.raises(Exception, match="nothing may before 4 tokens"):
        run_all(broken("min_tokens_short"), [job(i, p, NEW, stop_token_ids=ends, min_tokens=4) for i, p in enumerate(PROMPTS)])


def test_a_batch_that_asks_for_nothing_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("nothing was asked for")

    assert Prefixes.of([None, None], [[], []], 97) is None
    logits = torch.randn(2, 3, 97)
    assert shape(logits, torch.zeros(2, 2, dtype=torch.int64), None) is logits
    monkeypatch.setattr(penalties, "Cursor", never)
    monkeypatch.setattr(penalties, "Fixed", never)
    for drafter in ("none", "ngram", "draft_model"):
        run_all(decoder(model(), drafter), [job(i, p, 8, temperature=i % 2) for i, p in enumerate(PROMPTS)], traced=True)


def test_counts_are_kept_for_the_rows_that_need_them_alone() -> None:
    biased = Shaping((3,), SamplingParams(4, logit_bias=((5, 1.0),)), (), frozenset())
    penalised = Shaping((3, 4), SamplingParams(4, presence_penalty=1.0), (), frozenset())
    prefixes = Prefixes.of([None, biased, penalised], [[], [], []], 1000)
    assert prefixes is not None
    assert prefixes.counts.shape == (1, 1000)
    assert prefixes.fixed.counted.tolist() == [2]


@pytest.mark.parametrize("drafter", ["ngram", "draft_model"])
def test_neighbours_with_parameters_change_nobody(drafter: str) -> None:
    plain = [job(i, p, NEW, temperature=(0.0, 1.0)[i % 2]) for i, p in enumerate(PROMPTS)]
    shaped = [job(10 + i, p, NEW, **{"temperature": 1.0} | SAMPLED["everything"]) for i, p in enumerate(PROMPTS)]
    mixed = [each for both in zip(plain, shaped, strict=True) for each in both]
    together = {r.job.index: r for r in decoder(model(), drafter, rows=5).run(mixed)}
    for each in mixed[:4]:
        (alone,) = run_all(decoder(model(), drafter, rows=1), [each])
        assert (alone.token_ids, alone.accepted) == (together[each.index].token_ids, together[each.index].accepted)


@pytest.mark.parametrize(("drafter", "temperature"), [("none", 0.0), ("ngram", 1.0), ("draft_model", 0.0), ("draft_model", 1.0)])
def test_what_cannot_be_honoured_ends_that_request_alone(drafter: str, temperature: float) -> None:
    nothing_left = tuple((token, -torch.inf) for token in range(97))
    bad: dict[str, dict[str, object]] = {
        "stop_token_ids names token 97, but the vocabulary has ids 0 to 96": {"stop_token_ids": (5, 97)},
        "logit_bias names token 1000": {"logit_bias": ((5, 1.0), (1000, 1.0))},
        r"bad_words[1] cannot be spelt": {"bad_words": ("a", " ")},
        "bans and biases leave no token": {"logit_bias": nothing_left},
    }
    good = [job(i, p, 8, temperature=temperature) for i, p in enumerate(PROMPTS)]
    wrong = [job(10 + i, PROMPTS[i], 8, temperature=temperature, **fields) for i, fields in enumerate(bad.values())]
    wrong.append(job(20, [5, 99], 8))
    done: dict[int, Running] = {r.job.index: r for r in decoder(model(), drafter).run([*wrong[:2], *good, *wrong[2:]])}
    for each, reason in zip(wrong, [*bad, "the prompt has token 99"], strict=True):
        assert reason in (done[each.index].error or ""), reason
        assert done[each.index].finish_reason == "error"
    assert [done[g.index].token_ids for g in good] == [r.token_ids for r in run_all(decoder(model(), drafter), good)]


def test_a_bad_word_is_spelt_with_and_without_a_space_and_no_end_is_banned() -> None:
    params = SamplingParams(4, bad_words=("ab", "ab", "c"))
    a, b, c = WORDS("abc", add_special_tokens=False)["input_ids"]
    assert asked.bans(params, WORDS, frozenset({c})) == ((a, b),)
    assert asked.bans(params, WORDS, frozenset()) == ((a, b), (c,))

    class Spaced:
        unk_token_id = None

        def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
            return {"input_ids": [{"x": 1, " x": 2}[text], 7]}

    assert asked.spellings(Spaced(), " x") == ((1, 7), (2, 7))  # type: ignore[arg-type]
