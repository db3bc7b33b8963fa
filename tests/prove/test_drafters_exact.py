"""Every drafter at full size: sampled answers against their enumerated probabilities."""

from __future__ import annotations

import pytest

from canary.engine.drafters.drawing import Drawing
from tests.engine.test_drafters_exact import MAKE, few_words, p_value

pytestmark = pytest.mark.prove


@pytest.mark.parametrize("name", MAKE)
def test_sampled_answers_have_the_targets_probabilities(name: str) -> None:
    assert p_value(few_words(), MAKE[name], Drawing(), 20_000)[0] > 1e-3
