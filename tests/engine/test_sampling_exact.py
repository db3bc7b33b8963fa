"""Sampled answers against exactly enumerated probabilities, small; `tests/prove/test_sampling_exact.py` runs the whole table."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

import pytest
from transformers import PreTrainedModel

from canary.engine.decode import Decoder
from canary.engine.faults import FAULTS
from canary.engine.hooks import CLEAN
from tests.bench.exactness import CITED, said
from tests.engine.exactness import LENGTH, PARAMETERS, cells, chi_square, enumerated, hooks_of, p_value, requests, small_model
from tests.engine.waves import speculating

SAMPLES = 400


@lru_cache(maxsize=1)
def model() -> PreTrainedModel:
    return small_model()


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_enumeration_is_a_distribution(name: str) -> None:
    found = enumerated(model(), PARAMETERS[name])
    assert math.isclose(sum(found.values()), 1.0, abs_tol=1e-6)
    if name != "plain":
        plain = enumerated(model(), {})
        assert sum(abs(found.get(answer, 0) - p) for answer, p in plain.items()) > 0.1


@pytest.mark.parametrize(
    ("drafter", "method", "name"),
    [("ngram", "token", "together"), ("draft_model", "block", "together"), ("adaptive_draft_model", "token", "typical_p")],
)
def test_answers_have_their_enumerated_probabilities(drafter: str, method: str, name: str) -> None:
    p, acceptance = chi_square(model(), drafter, PARAMETERS[name], SAMPLES, hooks_of(drafter, method))
    assert p > 1e-3
    assert 0 < acceptance < 1


@pytest.mark.parametrize(
    ("drafter", "method"),
    [("ngram", "token"), ("draft_model", "block"), ("heads", "token"), ("composite", "block"), ("adaptive_ngram", "token")],
)
def test_a_wave_gives_the_answers_of_the_ordinary_loop(drafter: str, method: str) -> None:
    """So that what waves show is true of the loop. With adaptive dense drafts an answer hangs on the batch: not compared."""
    asked, hooks = requests(PARAMETERS["together"], 24), hooks_of(drafter, method)
    wave = {r.job.index: (r.token_ids, r.num_cut) for r in speculating(model(), drafter, hooks, rows=24).run(asked)}
    alone = speculating(model(), drafter, hooks, rows=5, loop=Decoder).run(asked)
    assert wave == {r.job.index: (r.token_ids, r.num_cut) for r in alone}


def test_a_dropped_bias_is_seen() -> None:
    hooks = FAULTS["bias_on_bonus_only"].inject(CLEAN)
    assert chi_square(model(), "draft_model", PARAMETERS["bias"], 4 * SAMPLES, hooks=hooks)[0] < 1e-3


def test_the_statistic_itself() -> None:
    expected = {(0,): 0.5, (1,): 0.499, (2,): 0.001}
    assert p_value(Counter({(0,): 500, (1,): 499, (2,): 1}), expected) > 0.9
    assert p_value(Counter({(0,): 600, (1,): 400}), expected) < 1e-6
    assert p_value(Counter({(0,): 500, (3,): 1}), expected) == 0.0


def test_rare_answers_share_the_cell_of_their_beginning() -> None:
    expected = {(0, 0): 0.5, (0, 1): 0.003, (0, 2): 0.003, (1, 0): 0.49, (1, 1): 0.002, (2, 2): 0.002}
    where = cells(expected, 1000)
    assert where[0, 1] == where[0, 2] != where[0, 0]
    assert where[1, 1] == where[2, 2], "what is left"
    assert len(set(where.values())) == 4
    assert max(map(len, expected)) < LENGTH


def test_every_fault_of_rules_and_parameters_has_a_line() -> None:
    assert {"uniform_zero", "min_p_ignored", "requests_from_draft"} <= set(CITED)
    assert "logprobs_zero" not in CITED
    assert [said(p) for p in (0.0, 1e-200, 2e-7, 0.25)] == ["< 1e-99", "< 1e-99", "2e-07", "0.25"]
