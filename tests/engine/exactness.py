"""A vocabulary of eight words in which every answer's probability is enumerated, and a chi-square of the loop's answers.

The probabilities come from plain forwards of the model and from transformers' own processors, never from the engine's sampling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from scipy.stats import chi2
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from canary.engine import reference
from canary.engine.asked import ends_of
from canary.engine.decode import Decoder
from canary.engine.forward import RowForward
from canary.engine.hooks import CLEAN, Hooks
from canary.engine.requests import Job, Running
from tests.engine.tiny import DRAFTERS, job, tiny_tokenizer

VOCAB, LENGTH = 8, 3
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
        max_position_embeddings=32,
        initializer_range=0.4,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


def request(index: int, params: Mapping[str, object]) -> Job:
    """One of the samples: all ask for the same and differ in their keys."""
    return job(index, PROMPT, LENGTH, **{"temperature": 1.0} | params)


@torch.inference_mode()
def enumerated(model: PreTrainedModel, params: Mapping[str, object]) -> dict[tuple[int, ...], float]:
    """Every answer and its probability."""
    running = Running(request(0, params), LENGTH)
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


def loop(model: PreTrainedModel, drafter: str, hooks: Hooks = CLEAN, *, k: int = 2, rows: int = 64) -> Decoder:
    """A loop whose answers are all of `LENGTH` tokens or end by a stop id."""
    target = RowForward(model, rows)
    proposing = DRAFTERS[drafter](model, target)
    return Decoder(target, WORDS, frozenset(), proposing, 0 if proposing is None else k, hooks=hooks)


def p_value(seen: Counter[tuple[int, ...]], expected: Mapping[tuple[int, ...], float]) -> float:
    """Pearson's chi-square; answers that are expected less than five times share a cell, and an impossible one gives 0."""
    if set(seen) - set(expected):
        return 0.0
    count = sum(seen.values())
    cells, rest = [], [0.0, 0.0]
    for answer, chance in expected.items():
        if chance * count < LEAST_EXPECTED:
            rest = [rest[0] + seen[answer], rest[1] + chance * count]
        else:
            cells.append((seen[answer], chance * count))
    if rest[1] > 0:
        cells.append((rest[0], rest[1]))
    statistic = sum((found - wanted) ** 2 / wanted for found, wanted in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def chi_square(
    model: PreTrainedModel, drafter: str, params: Mapping[str, object], samples: int, hooks: Hooks = CLEAN
) -> tuple[float, float]:
    """p-value of the loop's answers, and the share of the drafts that were accepted (nan without any)."""
    seen: Counter[tuple[int, ...]] = Counter()
    drafted = accepted = 0
    for running in loop(model, drafter, hooks).run([request(i, params) for i in range(samples)]):
        assert running.error is None
        seen[tuple(running.token_ids)] += 1
        drafted, accepted = drafted + sum(running.drafted), accepted + sum(running.accepted)
    return p_value(seen, enumerated(model, params)), accepted / drafted if drafted else float("nan")
