"""The loop's own traces certify equivalence, at wide margins; `tests/prove/test_certifies.py` does it at the default ones."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from canary.domain.policy import Gates
from canary.engine.faults import FAULTS
from tests.engine.certifying import GATES, certify
from tests.engine.exactness import PARAMETERS, small_model

WIDE_MARGINS = Gates(margin=0.1, request_margin=0.1)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return small_model()


@pytest.mark.parametrize(("drafter", "method"), [("draft_model", "block"), ("ngram", "token")])
def test_every_certificate_holds(model: PreTrainedModel, drafter: str, method: str) -> None:
    found = certify(model, drafter, method, PARAMETERS["plain"], 6_000, WIDE_MARGINS)
    assert {found.gates[gate] for gate in GATES} == {("pass", "certified")}
    assert found.gates["losslessness"][0] == "pass"
    assert found.at is not None


def test_too_few_tokens_certify_nothing(model: PreTrainedModel) -> None:
    found = certify(model, "draft_model", "token", PARAMETERS["plain"], 400, WIDE_MARGINS)
    assert found.at is None
    assert "pass" not in {found.gates[gate][0] for gate in GATES}


@pytest.mark.parametrize("fault", ["resample_from_target"])
def test_a_faulty_loop_is_refused(model: PreTrainedModel, fault: str) -> None:
    inject = FAULTS[fault].inject
    found = certify(model, "draft_model", "token", PARAMETERS["plain"], 1_200, WIDE_MARGINS, inject=inject)
    assert found.gates["losslessness"][0] == "fail"
