"""Every parameter, drafter and way to judge drafts against exactly enumerated probabilities, 20,000 answers each.

A new drafter or way to judge only adds a row. A case takes about a minute of one core (`-m prove -s` prints its figures).
"""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from transformers import PreTrainedModel

from canary.engine.faults import FAULTS
from canary.engine.hooks import CLEAN, METHODS
from tests.engine.exactness import PARAMETERS, chi_square, small_model

pytestmark = [pytest.mark.prove, pytest.mark.timeout(7200)]

SAMPLES = 20_000
LEVEL = 1e-3
DRAFTERS = ("ngram", "draft_model", "early_exit", "heads", "composite")

# fault -> what the requests ask for, so that it can show at all; judged with a draft model
SEEN = {
    "temperature_ignored": "temperature",
    "filters_ignored": "top_p",
    "min_p_ignored": "min_p",
    "bias_on_bonus_only": "bias",
    "penalties_ignored": "repetition",
    "penalties_frozen": "presence_and_frequency",
    "greedy_verify": "plain",
    "uniform_zero": "plain",
    "resample_from_target": "plain",
    "residual_argmax": "plain",
    "one_hot_accept_dense_residual": "plain",
    "dense_accept_one_hot_residual": "plain",
    "accept_iff_argmax": "plain",
    "typical_acceptance": "plain",
}


@lru_cache(maxsize=1)
def model() -> PreTrainedModel:
    torch.set_num_threads(1)
    return small_model()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", PARAMETERS)
def test_answers_have_their_enumerated_probabilities(name: str, drafter: str, method: str) -> None:
    p, acceptance = chi_square(model(), drafter, PARAMETERS[name], SAMPLES, METHODS[method])
    print(f"\n{name}, {drafter}, {method}: p {p:.4f}, acceptance {acceptance:.3f}")
    assert p > LEVEL
    assert 0 < acceptance < 1


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_baseline_too(name: str) -> None:
    assert chi_square(model(), "none", PARAMETERS[name], SAMPLES)[0] > LEVEL


@pytest.mark.parametrize("fault", SEEN)
def test_faults_are_seen(fault: str) -> None:
    p, _ = chi_square(model(), "draft_model", PARAMETERS[SEEN[fault]], SAMPLES, FAULTS[fault].inject(CLEAN))
    print(f"\n{fault}: p {p:.2e}")
    assert p < LEVEL
