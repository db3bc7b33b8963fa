"""A vocabulary of eight words in which every answer's probability is enumerated, and a chi-square of the loop's answers.

The probabilities come from plain forwards of the model and from transformers' own processors, never from the engine's sampling.
An answer has four tokens: the first comes from the prompt's own forward, the other three may come from one round of two drafts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from scipy.stats import chi2
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from canary.domain.pairs import DrafterKind
from canary.domain.traffic import SamplingParams
from canary.engine import reference
from canary.engine.asked import ends_of
from canary.engine.hooks import CLEAN, Hooks, of_verification
from canary.engine.requests import Job, Running
from tests.engine.tiny import tiny_tokenizer
from tests.engine.waves import KINDS, speculating

VOCAB, LENGTH = 8, 4
PROMPT = (3, 4, 5, 6, 3, 4)  # so that copying has something to copy
WORDS = tiny_tokenizer()  # its ids 3 to 7 are a space, !, ", # and $
LEAST_EXPECTED = 5.0

# What each parameter asks for; new parameters only add a line.
PARAMETERS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "temperature": {"temperature": 1.6},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.25},
    "typical_p": {"typical_p": 0.7},
    "repetition": {"repetition_penalty": 1.8},
    "presence_and_frequency": {"presence_penalty": 0.8, "frequency_penalty": 0.6},
    "bias": {"logit_bias": ((5, 1.5), (7, -2.0))},
    "bad_words": {"bad_words": ("#", '!"', '"!')},
    "min_tokens": {"stop_token_ids": (5, 6), "min_tokens": 1},
    "together": {
        "temperature": 1.3, "top_p": 0.97, "min_p": 0.02, "repetition_penalty": 1.3, "frequency_penalty": -0.5,
        "logit_bias": ((4, 0.7),), "bad_words": ("#", "!$"), "stop_token_ids": (6,), "min_tokens": 1,
    },
}  # fmt: skip


def small_model(seed: int = 0) -> PreTrainedModel:
    """A random model of eight words and two layers that never ends by itself."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.4,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


def requests(params: Mapping[str, object], samples: int, seed: int = 7) -> list[Job]:
    """The samples: all ask for the same and differ in their keys."""
    asked = SamplingParams(LENGTH, **{"temperature": 1.0} | params)
    return [Job(index, PROMPT, asked, (index, seed)) for index in range(samples)]


@torch.inference_mode()
def enumerated(model: PreTrainedModel, params: Mapping[str, object]) -> dict[tuple[int, ...], float]:
    """Every answer and its probability."""
    running = Running(requests(params, 1)[0], LENGTH)
    running.shape(frozenset(), WORDS)
    ends = ends_of(running.job.params, frozenset())
    shapers, warpers = reference.shapers(running.shaping), reference.warpers(running.job.params)
    open_, done = {(): 1.0}, {}
    for _ in range(LENGTH):
        texts = torch.tensor([[*PROMPT, *answer] for answer in open_])
        raw = model(texts).logits[:, -1]
        rows = warpers(texts, shapers(texts, raw)).double().softmax(-1).tolist()
        longer: dict[tuple[int, ...], float] = {}
        for (answer, chance), row in zip(open_.items(), rows, strict=True):
            for token, p in enumerate(row):
                if p > 0:
                    (done if token in ends else longer)[(*answer, token)] = chance * p
        open_ = longer
    return done | open_


def cells(expected: Mapping[tuple[int, ...], float], count: int) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The cell of every answer: itself, or the longest beginning that it shares with other rare ones often enough.

    Args:
        count: of the samples; a cell is expected at least `LEAST_EXPECTED` times, but for one that holds what is left.
    """
    found, open_ = {}, {answer: [answer] for answer in expected}
    for size in range(LENGTH, -1, -1):
        shorter: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for cell, answers in open_.items():
            if sum(expected[answer] for answer in answers) * count >= LEAST_EXPECTED or size == 0:
                found |= dict.fromkeys(answers, (size, *cell))
            else:
                shorter.setdefault(cell[: size - 1], []).extend(answers)
        open_ = shorter
    return found


def p_value(seen: Counter[tuple[int, ...]], expected: Mapping[tuple[int, ...], float]) -> float:
    """Pearson's chi-square over `cells`; an answer that is impossible gives 0."""
    if set(seen) - set(expected):
        return 0.0
    count = sum(seen.values())
    where = cells(expected, count)
    table: dict[tuple[int, ...], list[float]] = {}
    for answer, chance in expected.items():
        cell = table.setdefault(where[answer], [0.0, 0.0])
        cell[0] += seen[answer]
        cell[1] += chance * count
    statistic = sum((found - wanted) ** 2 / wanted for found, wanted in table.values())
    return float(chi2.sf(statistic, len(table) - 1))


def hooks_of(drafter: str, method: str) -> Hooks:
    """The clean hooks as the engine has them for a drafter: an adaptive one-hot drafter has a verifier of its own."""
    adaptive = drafter.startswith("adaptive") and KINDS[drafter] is DrafterKind.ONE_HOT
    return of_verification(method, DrafterKind.ONE_HOT if adaptive else None)


def chi_square(
    model: PreTrainedModel, drafter: str, params: Mapping[str, object], samples: int, hooks: Hooks = CLEAN, seed: int = 7
) -> tuple[float, float]:
    """p-value of the loop's answers, and the share of the drafts that were accepted (nan without any).

    Args:
        seed: of the random keys.
    """
    seen: Counter[tuple[int, ...]] = Counter()
    drafted = accepted = 0
    for running in speculating(model, drafter, hooks).run(requests(params, samples, seed)):
        assert running.error is None
        seen[tuple(running.token_ids)] += 1
        drafted, accepted = drafted + sum(running.drafted), accepted + sum(running.accepted)
    return p_value(seen, enumerated(model, params)), accepted / drafted if drafted else float("nan")
