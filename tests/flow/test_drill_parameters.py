"""Faults in sampling parameters and in what is told of them, each through a whole drill on a tiny model: from body to verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from canary.domain.catalogue import CATALOGUE
from canary.domain.drills import Outcome
from tests.flow.test_drill import drilled, models, policy_of, requests

__all__ = ["models"]  # the fixture

PENALISED = {"presence_penalty": 1.5, "frequency_penalty": 1.0}
# fault, drafter, temperature, request parameters, and far more requests than it takes: 5 to 16 in a dozen runs of each
CASES: list[tuple[str, str, float, dict[str, Any], int]] = [
    ("min_p_ignored", "ngram", 1.0, {"min_p": 0.2}, 48),
    ("bias_on_bonus_only", "ngram", 1.0, {"logit_bias": {"5": -100, "6": 8}}, 48),
    ("penalties_ignored", "ngram", 1.0, PENALISED, 96),
    ("penalties_frozen", "draft_model", 1.0, PENALISED, 96),
    ("rejected_drafts_counted", "draft_model", 1.0, PENALISED, 96),
    ("min_tokens_short", "ngram", 1.0, {"min_tokens": 8, "stop_token_ids": list(range(3, 97, 2))}, 96),
    ("logprobs_zero", "ngram", 1.0, {"logprobs": True}, 48),
    ("logprobs_of_next_row", "ngram", 0.0, {"logprobs": True, "top_logprobs": 2}, 48),
]


@pytest.mark.parametrize(("name", "drafter", "temperature", "params", "budget"), CASES, ids=[case[0] for case in CASES])
def test_a_fault_is_caught_by_a_gate_that_its_entry_names(
    models: Path, name: str, drafter: str, temperature: float, params: dict[str, Any], budget: int
) -> None:
    prompts = requests.__wrapped__(budget, temperature, **params)  # a bias cannot be a cache's key
    (result,) = drilled(policy_of(models, drafter), prompts, name)
    assert (result.fault, result.outcome) == (name, Outcome.CAUGHT), result
    assert result.gate in CATALOGUE[name].seen_by
    assert 0 < result.requests <= budget
