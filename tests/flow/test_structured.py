"""What a valid answer is, how a policy says so, and what is kept of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import canary
from canary.domain.errors import PolicyError, UsageError
from canary.domain.live_policy import Structured
from canary.domain.pairs import Arm, DecodeStats, Generation
from canary.domain.traffic import PLAIN_FORM, AnswerForm
from canary.flow import structured as structured_module
from canary.flow.attempt import pinned_policy
from canary.flow.structured import Validity, equal, judge, promised, unusable
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load, load_text, read_text, schema
from canary.inmemory import InMemoryStore
from tests.flow.tiny_walk import policy_text

ORDER = {
    "type": "object",
    "required": ["item", "count"],
    "properties": {"item": {"type": "string"}, "count": {"$ref": "#/$defs/count"}},
    "$defs": {"count": {"type": "integer", "minimum": 1}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "required": ["city"]}}},
    {"type": "function", "function": {"name": "stop"}},
]
JSON = Structured("json", json.dumps(ORDER))
CALLS = Structured("tools", json.dumps(TOOLS))


def answer(arm: Arm, text: str, finish_reason: str = "stop", error: str | None = None) -> Generation:
    return Generation(arm, (1,), text, finish_reason, DecodeStats(0, (0,), (0,)), error=error)


@pytest.mark.parametrize(
    ("structured", "text", "valid"),
    [
        (JSON, '{"item": "pen", "count": 2}', True),
        (JSON, ' \n{"count": 2, "item": "pen"}\n', True),
        (JSON, '{"item": "pen", "count": 0}', False),
        (JSON, '{"item": "pen"}', False),
        (JSON, '{"item": "pen", "count": 2', False),
        (JSON, 'Sure! {"item": "pen", "count": 2}', False),
        (JSON, '{"item": "pen", "count": 2, "count": 3}', False),
        (JSON, '{"item": "pen", "count": NaN}', False),
        (JSON, "", False),
        (JSON, "[" * 100_000, False),
        (Structured("json"), "[" * 101 + "]" * 101, False),
        (Structured("json"), "[" * 100 + "]" * 100, True),
        (Structured("json"), "[1, 2]", True),
        (Structured("json"), "one", False),
        (CALLS, '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>', True),
        (CALLS, '{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}', True),
        (CALLS, '[{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}, {"name": "stop", "arguments": {}}]', True),
        (CALLS, '{"tool_calls": [{"function": {"name": "stop", "arguments": "{}"}}]}', True),
        (CALLS, '{"name": "weather", "arguments": {}}', False),
        (CALLS, '{"name": "shell", "arguments": {}}', False),
        (CALLS, '{"name": "weather", "arguments": "{city: Oslo}"}', False),
        (CALLS, '{"name": "weather", "arguments": [1]}', False),
        (CALLS, '{"function": 3}', False),
        (CALLS, "[]", False),
        (CALLS, "[3]", False),
        (CALLS, "<tool_call>{</tool_call>", False),
        (Structured("tools"), '{"name": "anything", "arguments": {}}', True),
    ],
)
def test_an_answer_is_valid_or_not(structured: Structured, text: str, valid: bool) -> None:
    baseline, candidate = judge(structured, answer(Arm.BASELINE, text), answer(Arm.CANDIDATE, text))
    assert (baseline.valid, candidate.valid, candidate.agrees) == (valid, valid, True if valid else None)
    assert baseline.agrees is None


def called(**arguments: object) -> str:
    return f'<tool_call>{{"name": "weather", "arguments": {json.dumps(arguments)}}}</tool_call>'


OFFERED = AnswerForm(json.dumps(TOOLS), "auto")
OBJECT, ORDERED = AnswerForm(response_format="json_object"), AnswerForm(response_format="json_schema", schema=json.dumps(ORDER))
NEITHER = '{"name": "shell", "arguments": {}}'


@pytest.mark.parametrize(
    ("kind", "form", "text", "valid"),
    [
        ("from_request", OFFERED, called(city="Oslo"), True),
        ("from_request", OFFERED, called(), False),
        ("from_request", OFFERED, "It is cold.", True),
        ("from_request", OFFERED, "[1] says that it is cold.", True),
        ("from_request", OFFERED, '<tool_call>{"name": "weather", "argum', False),
        ("from_request", OFFERED, '{"name": "weather", "argum', False),
        ("from_request", OFFERED, NEITHER, False),
        ("from_request", replace(OFFERED, tool_choice="required"), "It is cold.", False),
        ("from_request", replace(OFFERED, tool_choice="required"), called(city="Oslo"), True),
        ("from_request", replace(OFFERED, tool_choice="named", tool="stop"), called(city="Oslo"), False),
        ("from_request", replace(OFFERED, tool_choice="named", tool="weather"), called(city="Oslo"), True),
        ("from_request", replace(OFFERED, tool_choice="none"), NEITHER, None),
        ("from_request", PLAIN_FORM, "words", None),
        ("from_request", OBJECT, "[1]", False),
        ("from_request", OBJECT, '{"a": 1}', True),
        ("from_request", ORDERED, '{"item": "pen", "count": 2}', True),
        ("from_request", ORDERED, '{"item": "pen", "count": 0}', False),
        ("from_request", replace(ORDERED, tools=OFFERED.tools, tool_choice="auto"), called(city="Oslo"), True),
        ("from_request", replace(ORDERED, tools=OFFERED.tools, tool_choice="auto"), '{"item": "pen", "count": 2}', True),
        ("from_request", replace(ORDERED, tools=OFFERED.tools, tool_choice="auto"), "It is cold.", False),
        ("json", ORDERED, '{"item": "pen", "count": 0}', False),
        ("json", OBJECT, "[1]", True),
        ("json", PLAIN_FORM, "{}", True),
        ("tools", OFFERED, NEITHER, False),
        ("tools", OFFERED, "It is cold.", False),
        ("tools", PLAIN_FORM, NEITHER, True),
    ],
)
def test_a_request_says_what_a_valid_answer_is(kind: str, form: AnswerForm, text: str, valid: bool | None) -> None:
    structured = Structured(kind)
    baseline, candidate = judge(structured, answer(Arm.BASELINE, text), answer(Arm.CANDIDATE, text), form)
    assert (baseline.valid, candidate.valid) == (valid, valid)
    assert candidate.agrees is (True if valid else None)
    assert unusable(structured, form) == ""


def test_the_policys_schema_goes_before_the_requests() -> None:
    strict = replace(OFFERED, tools=json.dumps(TOOLS[1:]), tool_choice="named", tool="stop")
    assert judge(CALLS, *(answer(arm, called(city="Oslo")) for arm in Arm), strict)[0].valid is True
    assert judge(JSON, *(answer(arm, '{"item": "pen", "count": 2}') for arm in Arm), AnswerForm(schema="false"))[0].valid is True


def test_schemas_that_cannot_be_used_or_take_too_long_judge_nobody() -> None:
    broken, endless = (AnswerForm(response_format="json_schema", schema=json.dumps(s)) for s in ({"type": "x"}, {"$ref": "#"}))
    for form, why in ((broken, "is not a JSON Schema at /type"), (endless, "")):
        baseline, candidate = judge(Structured("from_request"), *(answer(arm, "{}") for arm in Arm), form)
        assert (baseline.valid, candidate.valid, candidate.agrees) == (None, None, None)
        assert why in unusable(Structured("from_request"), form)


def test_a_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    real = structured_module.Compiled
    monkeypatch.setattr(structured_module, "Compiled", lambda *given: compiled.append(given) or real(*given))
    form = AnswerForm(response_format="json_schema", schema='{"title": "seen once"}')
    for _ in range(3):
        judge(Structured("from_request"), *(answer(arm, "{}") for arm in Arm), replace(form, schema=str(form.schema)))
    assert len(compiled) == 1


def test_arguments_are_compared_as_json() -> None:
    one = answer(Arm.BASELINE, '{"item": "pen", "count": 2}')
    same = answer(Arm.CANDIDATE, '{"count": 2.0, "item": "pen"}')
    other = answer(Arm.CANDIDATE, '{"count": 3, "item": "pen"}')
    assert judge(JSON, one, same)[1].agrees is True
    assert judge(JSON, one, other)[1].agrees is False
    assert equal({"a": [1, {"b": None}]}, {"a": [1.0, {"b": None}]})
    for left, right in ((1, True), (0, False), ([1], [1, 1]), ({"a": 1}, {"b": 1}), ("1", 1), (None, 0)):
        assert not equal(left, right)


def test_cut_and_failed_answers_are_neither() -> None:
    whole = answer(Arm.BASELINE, '{"item": "pen", "count": 2}')
    for odd in (answer(Arm.CANDIDATE, '{"it', "length"), answer(Arm.CANDIDATE, "", "error", "it broke")):
        baseline, candidate = judge(JSON, whole, odd)
        assert (baseline.valid, candidate.valid, candidate.agrees) == (True, None, None)
    assert judge(None, whole, whole) == (whole, whole)


@pytest.mark.parametrize(
    ("structured", "words"),
    [
        (Structured("json", '{"type": "objekt"}'), "is not a JSON Schema at /type"),
        (Structured("json", '{"$ref": "http://127.0.0.1:9/x"}'), "leaves the schema"),
        (Structured("tools", "{}"), "must be a list of tools"),
        (Structured("tools", "[]"), "must be a list of tools"),
        (Structured("tools", '[{"function": {}}]'), "tool 0 has no name"),
        (
            Structured("tools", '[{"function": {"name": "a", "parameters": {"type": 3}}}]'),
            "schema of tool a is not a JSON Schema",
        ),
    ],
)
def test_a_wrong_schema_is_refused(structured: Structured, words: str) -> None:
    promise = promised(structured, PLAIN_FORM)
    assert promise is not None
    with pytest.raises(UsageError, match=words.split(" at /")[0].replace("(", r"\(")):
        Validity(promise)


def written(section: str) -> str:
    return policy_text(Path("target")) + f"structured: {section}\n"


def test_a_policy_holds_its_schema(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text(json.dumps(ORDER))
    (tmp_path / "a.yaml").write_text(written("{kind: json, schema_file: order.json}"))
    (tmp_path / "b.yaml").write_text(written(f"{{kind: json, schema: {json.dumps(ORDER)}}}"))
    named, inline = (load(tmp_path / name) for name in ("a.yaml", "b.yaml"))
    assert named.structured == inline.structured == Structured("json", json.dumps(ORDER, sort_keys=True, separators=(",", ":")))
    assert named.content_hash == inline.content_hash != load_text(policy_text(Path("target"))).content_hash
    assert load_text(dump(named)) == named
    store = InMemoryStore()
    rollout = apply_policy(store, named, read_text(tmp_path / "a.yaml"), 1.0)
    (tmp_path / "order.json").unlink()
    with store.transaction() as tx:
        assert pinned_policy(tx, rollout) == named


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{kind: xml}", "'xml', which is unknown"),
        ("{schema: {}}", "lacks the key 'kind'"),
        ("{kind: json, schema: {type: objekt}}", "is not a JSON Schema"),
        ("{kind: json, schema: {a: 2024-01-01}}", "is not a JSON value"),
        ("{kind: json, schema_file: missing.json}", "cannot be read"),
        ("{kind: json, schema: {}, schema_file: missing.json}", "both given"),
        ("{kind: json, why: because}", "unknown key 'why'"),
        ("{kind: from_request, schema: {}}", "requests bring theirs"),
    ],
)
def test_a_policy_with_a_wrong_section_is_refused_with_its_line(tmp_path: Path, section: str, words: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(written(section))
    with pytest.raises(PolicyError) as caught:
        load(file)
    assert words in str(caught.value)
    assert caught.value.where.startswith(f"{file}:{len(written(section).splitlines())}:")


def test_a_text_from_elsewhere_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "order.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError, match="a file cannot be read here"):
        load_text(written("{kind: json, schema_file: order.json}"))


def live(stage: str, **changes: Any) -> str:
    text = policy_text(Path("target")).replace("- {name: canary, weight: 5 %, live: waived, why: a test}", stage)
    assert stage in text
    return text + "".join(f"{key}: {value}\n" for key, value in changes.items())


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("- {name: canary, weight: 5 %, live: [structured_validity]}", "what a valid answer is"),
        ("- {name: canary, weight: 5 %, live: [memory]}", "how much must stay free"),
        ("- {name: canary, weight: 5 %, live: [tidiness]}", "which is unknown"),
    ],
)
def test_a_live_gate_that_could_not_speak_is_refused(stage: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        load_text(live(stage))


def test_live_gates_and_structure_share_one_budget() -> None:
    plain = "- {name: canary, weight: 5 %, live: [speed]}"
    safety = "- {name: canary, weight: 5 %, live: [errors, structured_validity]}"
    assert load_text(live(plain)).error_shares == 1
    assert load_text(live(plain, structured="{kind: json}")).error_shares == 2
    assert load_text(live(safety, structured="{kind: json}")).error_shares == 4
    assert load_text(live(safety.replace(", structured_validity", ""))).error_shares == 2
    policy = load_text(live(plain, live_gates="{min_requests: 80, thumbs_margin: 0.1}"))
    assert (policy.live_gates.min_requests, policy.live_gates.thumbs_margin) == (80, 0.1)
    for at, asked in ((0, "errors"), (2, "speed")):
        stages = (*policy.stages[:at], replace(policy.stages[at], live=(asked,)), *policy.stages[at + 1 :])
        with pytest.raises(PolicyError, match=r"live traffic|left on the baseline"):
            replace(policy, stages=stages).check()


def test_a_safety_gate_at_full_is_one_share_more() -> None:
    """Errors alone: shadow, live comparison and full; with structure each of the two has all three."""
    for structured, asked, shares in ((None, ("errors",), 3), ("{kind: json}", ("errors", "structured_validity"), 6)):
        section = {} if structured is None else {"structured": structured}
        policy = load_text(live("- {name: canary, weight: 5 %, live: [errors]}", **section))
        stages = (*policy.stages[:2], replace(policy.stages[2], live=asked))
        whole = replace(policy, stages=stages)
        whole.check()
        assert whole.error_shares == shares


def test_the_schema_of_policies_knows_both_sections() -> None:
    found = schema()["properties"]
    assert found["structured"]["required"] == ["kind"]
    assert found["live_gates"]["properties"]["min_requests"]["default"] == 50


def test_the_documented_sections_are_legal(tmp_path: Path) -> None:
    documented = (Path(canary.__file__).parent / "docs" / "policy.md").read_text()
    blocks = [b for b in re.findall(r"```yml\n(.*?)```", documented, re.DOTALL) if "live_gates:" in b or "structured:" in b]
    assert len(blocks) == 2
    head = policy_text(Path("target")).split("shadow:")[0]
    (tmp_path / "order.schema.json").write_text(json.dumps(ORDER))
    (tmp_path / "both.yaml").write_text(head + "".join(blocks))
    policy = load(tmp_path / "both.yaml")
    assert policy.structured is not None
    assert policy.error_shares == 4
