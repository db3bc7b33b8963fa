"""Sampled answers against exactly enumerated probabilities, small; `tests/prove/test_sampling_exact.py` runs the whole table."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

import pytest
from transformers import PreTrainedModel

from canary.engine.faults import FAULTS
from canary.engine.hooks import CLEAN
from tests.engine.exactness import PARAMETERS, chi_square, enumerated, p_value, small_model

SAMPLES = 250


@lru_cache(maxsize=1)
def model() -> PreTrainedModel:
    return small_model()


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_enumeration_is_a_distribution(name: str) -> None:
    found = enumerated(model(), PARAMETERS[name])
    assert math.isclose(sum(found.values()), 1.0, abs_tol=1e-6)
    if name != "plain":
        assert any(abs(found.get(answer, 0) - p) > 0.005 for answer, p in enumerated(model(), {}).items())


@pytest.mark.parametrize(("drafter", "name"), [("ngram", "together"), ("draft_model", "together"), ("draft_model", "typical_p")])
def test_answers_have_their_enumerated_probabilities(drafter: str, name: str) -> None:
    p, acceptance = chi_square(model(), drafter, PARAMETERS[name], SAMPLES)
    assert p > 1e-3
    assert 0 < acceptance < 1


def test_a_dropped_bias_is_seen() -> None:
    hooks = FAULTS["bias_on_bonus_only"].inject(CLEAN)
    assert chi_square(model(), "draft_model", PARAMETERS["bias"], 4 * SAMPLES, hooks=hooks)[0] < 1e-3


def test_the_statistic_itself() -> None:
    expected = {(0,): 0.5, (1,): 0.499, (2,): 0.001}
    assert p_value(Counter({(0,): 500, (1,): 499, (2,): 1}), expected) > 0.9
    assert p_value(Counter({(0,): 600, (1,): 400}), expected) < 1e-6
    assert p_value(Counter({(0,): 500, (3,): 1}), expected) == 0.0
