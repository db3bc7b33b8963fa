"""Every drafter, batch size, model family, forward and parameter: greedy tokens are those of transformers' `generate`.

And sampled tokens are the request's own: the same alone and in any company. It compares and never measures time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pytest
from transformers import PreTrainedModel

from canary.domain.pairs import DrafterKind
from canary.domain.traffic import SamplingParams
from canary.engine import asked
from canary.engine.adaptive import AdaptiveK, CostTable
from canary.engine.decode import Decoder
from canary.engine.drafters.adaptive import AdaptiveDrafter
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import FAST, PLAIN, RowForward
from canary.engine.hooks import CLEAN, METHODS, Hooks, of_verification
from canary.engine.requests import Job
from tests.engine.asking import generated, settings
from tests.engine.tiny import DRAFTERS, EOS, job, prompts, run_all, tiny_model, tiny_tokenizer

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]

WORDS = tiny_tokenizer()
PROMPTS = prompts(16, seed=9, shortest=8)
NEW, K = 12, 4
BATCHES = {1: 4, 4: 8, 16: 16}  # rows -> requests: as many prompts, from the first one on
FORWARDS = [("llama", PLAIN), ("llama", FAST), ("qwen3", PLAIN), ("qwen3", FAST), ("gpt_neox", PLAIN), ("gemma", PLAIN)]
NAMES = [name for name in DRAFTERS if name not in ("target_itself", "exit_at_the_end")]
COSTS = CostTable({(n, w): 10.0 + 0.1 * w * n for n in (1, 4) for w in (1, 2, 3, 5)})


@lru_cache(maxsize=1)
def model(family: str) -> PreTrainedModel:
    return tiny_model(family, loopy=True, seed=3)


@lru_cache(maxsize=1)
def asking(family: str) -> dict[str, list[dict[str, object]]]:
    """One set of parameters per prompt and setting, aimed at what the model says by itself; the last setting mixes the others."""
    fields: dict[str, list[dict[str, object]]] = {"free": [{}] * len(PROMPTS)}
    for prompt in PROMPTS:
        said = generated(model(family), prompt, SamplingParams(NEW, temperature=0.0), (), ())
        words = WORDS.convert_ids_to_tokens(said)
        for name, each in settings(WORDS, said).items():
            # where the answer repeats itself two entries name one token, which JSON cannot say: the last one counts there
            once = {"logit_bias": tuple(dict(each["logit_bias"]).items())} if "logit_bias" in each else {}  # type: ignore[call-overload]
            fields.setdefault(name, []).append(each | once)
        fields.setdefault("stop_strings", []).append({"stop": ("".join(words[5:7]), "".join(words[8:11]), "zz~")})
        fields.setdefault("short", []).append({"max_tokens": 1 + len(fields["stop_strings"]) % 4})
    names = list(fields)
    return fields | {"mixed": [fields[names[i % len(names)]][i] for i in range(len(PROMPTS))]}


@lru_cache(maxsize=1)
def jobs(family: str) -> dict[str, list[Job]]:
    return {
        name: [job(i, p, **{"max_tokens": NEW} | each) for i, (p, each) in enumerate(zip(PROMPTS, fields, strict=True))]
        for name, fields in asking(family).items()
    }


@lru_cache(maxsize=1)
def wanted(family: str) -> dict[str, list[list[int]]]:
    """What `generate` says, one prompt at a time."""

    def answer(each: Job) -> list[int]:
        ends = asked.ends_of(each.params, frozenset({EOS}))
        found = generated(model(family), each.token_ids, each.params, asked.bans(each.params, WORDS, ends), sorted(ends))
        texts = (WORDS.decode(found[: i + 1], skip_special_tokens=True) for i in range(len(found)))
        stop = next((i for i, text in enumerate(texts) if any(s in text for s in each.params.stop)), len(found))
        return found[: stop + 1]  # generate looks for a stop string in the prompt too

    return {name: [answer(each) for each in listed] for name, listed in jobs(family).items()}


@dataclass
class Told:
    """What one drafter was compared in."""

    cases: int = 0
    answers: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0


def loop_over(family: str, forward: str, name: str, rows: int, hooks: Hooks = CLEAN) -> Decoder:
    """A loop of `NAMES`, or with n-grams whose number adapts."""
    target = RowForward(model(family), rows, forward=forward)
    assert target.forward == forward
    if name == "adaptive":
        drafter = AdaptiveDrafter(NgramDrafter(rows, 3), AdaptiveK(COSTS, K, rows))
        hooks = of_verification("token", DrafterKind.ONE_HOT)
        return Decoder(target, WORDS, frozenset({EOS}), drafter, K, hooks=hooks, pads=False)
    made = DRAFTERS[name](model(family), target)
    return Decoder(target, WORDS, frozenset({EOS}), made, K if made else 0, hooks=hooks)


@pytest.mark.parametrize("drafter", [*NAMES, "adaptive"])
@pytest.mark.parametrize(("family", "forward"), FORWARDS)
def test_greedy_equals_generate(family: str, forward: str, drafter: str) -> None:
    """One loop a batch size for all settings, so that a loop that keeps something of a request would show too."""
    right, told, wrong = wanted(family), Told(), []
    for rows, count in BATCHES.items():
        loop = loop_over(family, forward, drafter, rows)
        for name, listed in jobs(family).items():
            told.cases += 1
            for at, running in enumerate(run_all(loop, listed[:count])):
                told.answers, told.tokens = told.answers + 1, told.tokens + len(running.token_ids)
                told.drafted, told.accepted = told.drafted + sum(running.drafted), told.accepted + sum(running.accepted)
                if running.error is not None or running.token_ids != right[name][at]:
                    wrong.append((rows, name, at, running.token_ids, right[name][at], running.error))
    print(f"\n{family}, {forward}, {drafter}: {len(wrong)} of {told.answers} answers differ; {told}")
    assert wrong == []
    assert (drafter == "none") == (told.accepted == 0)
    assert (drafter == "none") == (told.accepted == told.drafted), "some drafts are rejected"


def test_every_setting_changes_answers() -> None:
    """Equality would say little about parameters that change nothing. No random model ends an answer that EOS alone would end."""
    for family in dict.fromkeys(family for family, _ in FORWARDS):
        found = wanted(family)
        changed = {
            name: sum(map(list.__ne__, found["free"], found[name])) for name in found if name not in ("free", "ignore_eos")
        }
        print(f"\n{family}: answers of {len(PROMPTS)} that differ from those without parameters: {changed}")
        assert min(changed.values()) >= 2


def sampled(count: int) -> Iterator[Job]:
    """Requests of every kind of sampling; a few are greedy."""
    kinds: Sequence[dict[str, object]] = (
        {"temperature": 1.0}, {"temperature": 0.6}, {"temperature": 0.8, "top_k": 12}, {"temperature": 0.9, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.05}, {"temperature": 1.0, "typical_p": 0.8}, {"temperature": 0.0},
        {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2, "bad_words": ("ab",)},
        {"temperature": 0.8, "logit_bias": ((40, 3.0), (41, -5.0)), "min_tokens": 6, "stop_token_ids": (40, 50)},
    )  # fmt: skip
    for i, prompt in enumerate(prompts(count, seed=13, shortest=2)):
        yield job(i, prompt, 16 - i % 5, **kinds[i % len(kinds)])


@pytest.mark.parametrize("drafter", [*NAMES, "adaptive"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox"])
def test_a_requests_tokens_are_its_own(family: str, method: str, drafter: str) -> None:
    """Alone, in batches of 5 and 16, in both orders: tokens, and with a fixed k what was drafted and accepted too."""
    if drafter == "adaptive" and method == "block":
        pytest.skip("one-hot drafts whose number adapts are judged token by token")
    forward, hooks = PLAIN if family == "gpt_neox" else FAST, METHODS[method]
    listed = list(sampled(36))
    alone = loop_over(family, forward, drafter, 1, hooks)
    first = [run_all(alone, [each])[0] for each in listed]
    others = [
        run_all(loop_over(family, forward, drafter, 5, hooks), listed),
        run_all(loop_over(family, forward, drafter, 16, hooks), listed[::-1])[::-1],
    ]
    for other in others:
        assert [r.token_ids for r in other] == [r.token_ids for r in first]
        if drafter != "adaptive":
            assert [(r.drafted, r.accepted) for r in other] == [(r.drafted, r.accepted) for r in first]
    assert drafter == "none" or sum(sum(r.drafted) for r in first) > 100
    print(f"\n{family}, {method}, {drafter}: {2 * len(listed)} answers equal those alone")


def test_adaptive_answers_are_those_without_drafts() -> None:
    for family in ("llama", "qwen3", "gpt_neox"):
        listed = [replace(each, key=(each.index, 3)) for each in sampled(36)]
        plain = run_all(loop_over(family, PLAIN, "none", 4), listed)
        adaptive = run_all(loop_over(family, PLAIN, "adaptive", 4), listed)
        assert [r.token_ids for r in adaptive] == [r.token_ids for r in plain]
        drafted, accepted = (sum(sum(getattr(r, name)) for r in adaptive) for name in ("drafted", "accepted"))
        print(f"\n{family}: {len(listed)} answers equal those without drafts; {drafted} drafted, {accepted} accepted")
        assert 0 < accepted < drafted
