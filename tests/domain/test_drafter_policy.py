"""Which fields of a drafter belong together, alone and in a policy file, where every complaint has its line."""

from __future__ import annotations

import pytest

from canary.domain.drafter_policy import Drafter
from canary.domain.errors import PolicyError
from canary.flow.tools.policy_files import dump, load_text, schema

POLICY = """\
route: math
subject:
  engine: own
  target: SmolLM2-135M-Instruct
  dtype: bfloat16
  drafter:
    num_speculative_tokens: 4
    {}
stages:
  - {{name: shadow, weight: 0 %, bake: 10m}}
  - {{name: canary, weight: 5 %, bake: 10m, live: waived, why: a test}}
  - {{name: full, weight: 100 %}}
"""

GOOD = {
    "name: ngram": Drafter("ngram", 4),
    "name: draft_model\n    model: d\n    device: cuda:1": Drafter("draft_model", 4, model="d", device="cuda:1"),
    "name: early_exit\n    exit_layer: 8": Drafter("early_exit", 4, exit_layer=8),
    "name: heads\n    heads: h": Drafter("heads", 4, heads="h"),
    "name: composite\n    fallback: draft_model\n    model: d\n    max_ngram: 5": Drafter(
        "composite", 4, model="d", max_ngram=5, fallback="draft_model"
    ),
    "name: composite\n    fallback: early_exit\n    exit_layer: 2": Drafter("composite", 4, exit_layer=2, fallback="early_exit"),
    "name: composite\n    fallback: heads\n    heads: h": Drafter("composite", 4, heads="h", fallback="heads"),
}

BAD = {
    "name: early_exit": "6:3 subject.drafter: early_exit needs an exit_layer. Add `exit_layer:`",
    "name: heads": "subject.drafter: heads needs heads. Add `heads:`",
    "name: composite": "subject.drafter: composite needs a fallback. Add `fallback:` with draft_model, early_exit or heads.",
    "name: composite\n    fallback: heads": "subject.drafter: heads needs heads. Add `heads:`",
    "name: composite\n    fallback: ngram": "9:15: subject.drafter.fallback is 'ngram', which is unknown. Write one of:",
    "name: ngram\n    fallback: heads": "9:15: subject.drafter.fallback: ngram takes no fallback. Remove it or use",
    "name: ngram\n    exit_layer: 3": "9:17: subject.drafter.exit_layer: ngram takes no exit_layer. Remove",
    "name: early_exit\n    exit_layer: 3\n    heads: h": "10:12: subject.drafter.heads: early_exit takes no heads.",
    "name: composite\n    fallback: heads\n    heads: h\n    model: d": (
        "11:12: subject.drafter.model: composite with heads takes no model. Remove it or use `fallback: draft_model`."
    ),
    "name: heads\n    heads: h\n    device: cpu": (
        "10:13: subject.drafter.device: heads takes no device. Remove it or use `name: draft_model`."
    ),
    "name: draft_model\n    model: d\n    device: gpu": "10:13: subject.drafter.device is 'gpu', but must be `cpu` or `cuda:N`.",
    "name: early_exit\n    exit_layer: 0": "9:17: subject.drafter.exit_layer is 0, but must be at least 1",
    "name: medusa": "8:11: subject.drafter.name is 'medusa', which is unknown. Write one of: ngram, draft_model,",
}


@pytest.mark.parametrize("lines", GOOD)
def test_what_belongs_together_is_read_and_written_back(lines: str) -> None:
    policy = load_text(POLICY.format(lines))
    assert policy.subject.drafter == GOOD[lines]
    again = load_text(dump(policy))
    assert (again.subject.drafter, again.content_hash) == (GOOD[lines], policy.content_hash)


@pytest.mark.parametrize("lines", BAD)
def test_what_does_not_is_refused_at_its_line(lines: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load_text(POLICY.format(lines), "math.yaml")
    assert BAD[lines].removeprefix("6:3 ") in str(caught.value)


def test_the_schema_names_and_explains_every_field() -> None:
    fields = schema()["properties"]["subject"]["properties"]["drafter"]["properties"]
    assert set(fields) == set(Drafter.__slots__)
    assert all(field["description"] for field in fields.values())


def test_a_fallback_is_what_needs_weights() -> None:
    assert Drafter("ngram", 4).model_drafter == "ngram"
    assert Drafter("composite", 4, fallback="heads", heads="h").model_drafter == "heads"
