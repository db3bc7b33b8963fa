"""A tool route from the mirrored body to the structured gate, and a drill whose fault only the texts' structure shows."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from canary import wiring
from canary.domain.drills import Outcome
from canary.domain.evidence import Evidence, Verdict
from canary.domain.live_policy import Structured
from canary.domain.pairs import Pair
from canary.domain.policy import Policy
from canary.domain.traffic import Stratum
from canary.flow.ports import Store
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.drill import Drill, run_drill, wanted
from canary.flow.tools.policy_files import content_hash, dump
from canary.flow.walk.assess import assess
from canary.flow.walk.mirror import accept
from canary.flow.walk.shadow import announce, shadow_once
from canary.telemetry import SilentObserver
from tests.engine.tiny import save_tiny, tiny_tokenizer
from tests.flow import tool_walk
from tests.flow.tiny_walk import ROUTE

FROM_REQUEST = Structured("from_request")
REQUESTS = 24
FAULT = "chunk_read_from_last_token"


class Noting(SilentObserver):
    def __init__(self) -> None:
        self.notes: list[tuple[str, dict[str, object]]] = []

    def note(self, event: str, **facts: object) -> None:
        self.notes.append((event, facts))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tool_walk.save(tmp_path_factory.mktemp("tools"))


def walked(policy: Policy, count: int, observer: SilentObserver | None = None) -> tuple[Store, Evidence, list[Pair]]:
    policy = replace(policy, content_hash=content_hash(policy))
    engine, store, clock = wiring.open_engine(policy, threads=1), wiring.memory_store(), itertools.count(1_000.0).__next__
    apply_policy(store, policy, dump(policy), clock())
    announce(store, ROUTE, engine.info, clock())
    accept(store, tool_walk.prompts(count), clock())
    evidence = None
    while shadow_once(store, ROUTE, engine, worker="w", clock=clock, observer=observer or SilentObserver()):
        evidence = assess(store, ROUTE, clock())
    assert evidence is not None
    with store.transaction() as tx:
        pairs = [tx.pairs.get(pair) for pair in tx.pairs.ids(ROUTE, evidence.epoch, evidence.attempt)]
    return store, evidence, [pair for pair in pairs if pair is not None]


def test_a_tool_route_end_to_end(models: Path) -> None:
    """A3.25: tool calls are recorded and compared, and never carried out."""
    _, evidence, pairs = walked(tool_walk.policy(models, FROM_REQUEST), REQUESTS)
    assert [pair.error for pair in pairs] == [None] * REQUESTS
    assert pairs[0].baseline.text == '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    for pair in pairs:
        for arm in (pair.baseline, pair.candidate):
            assert arm.valid == arm.text.endswith('"}}</tool_call>'), arm.text
        both = bool(pair.baseline.valid and pair.candidate.valid)
        assert pair.candidate.agrees == ((pair.baseline.text == pair.candidate.text) if both else None)
    assert {pair.candidate.agrees for pair in pairs} >= {True, False}
    gate = evidence.gate("structured_validity")
    assert gate is not None
    assert (gate.verdict is Verdict.FAIL, gate.n) == (False, REQUESTS)
    assert cast(float, gate.details["e_value_progress"]) < 0.5
    strata = cast(dict[str, dict[str, int]], gate.details["by_stratum"])
    assert strata["greedy"]["both_valid"] == strata["greedy"]["agree"] == REQUESTS // 2
    sampled = Counter((p.baseline.valid, p.candidate.valid) for p in pairs if p.stratum is Stratum.SAMPLED)
    found = {"both_valid": (True, True), "only_candidate": (True, False), "only_baseline": (False, True)}
    assert {name: strata["sampled"][name] for name in found} == {name: sampled[kinds] for name, kinds in found.items()}
    assert "No grammar constrains either arm" in gate.sentence
    assert "template" not in gate.sentence


def test_a_fault_that_breaks_the_text_is_caught_by_structure_alone(models: Path) -> None:
    policy = tool_walk.policy(models, FROM_REQUEST)

    def open_engine(changed: Policy):  # type: ignore[no-untyped-def]
        return wiring.open_engine(changed, threads=1)

    clock = itertools.count(1_000.0).__next__
    told = {"clock": clock, "observer": SilentObserver(), "progress": lambda name, done, total: None}
    drill = Drill(policy, tool_walk.prompts(REQUESTS), open_engine, wiring.memory_store, **told)  # type: ignore[arg-type]
    clean = open_engine(policy).info
    (caught,) = run_drill(drill, wanted([FAULT]), clean)
    assert (caught.outcome, caught.gate, caught.reason) == (Outcome.CAUGHT, "structured_validity", "invalid_answers")
    blind = replace(drill, policy=replace(policy, structured=None))
    (unseen,) = run_drill(blind, wanted([FAULT]), clean)
    assert unseen.outcome is Outcome.CANNOT_SHOW


def test_what_the_template_leaves_out_is_said_with_the_gate(models: Path, tmp_path: Path) -> None:
    words = tool_walk.tokenizer()
    words.chat_template = tiny_tokenizer().chat_template
    for name in ("target", "draft"):
        save_tiny(tmp_path / name, tool_walk.caller(0.6, 0.95), words)
    engines = [wiring.open_engine(tool_walk.policy(folder, FROM_REQUEST), threads=1).info for folder in (models, tmp_path)]
    assert [info.left_out for info in engines] == [(), ("tools", "tool_calls")]
    assert not any(info.constrains for info in engines)
    _, evidence, pairs = walked(tool_walk.policy(tmp_path, FROM_REQUEST), 4)
    assert [pair.error for pair in pairs] == [None] * 4
    gate = evidence.gate("structured_validity")
    assert gate is not None
    assert gate.sentence.endswith("The target's chat template leaves tools and tool_calls out of the prompt.")


def test_a_template_that_cannot_express_tools_fails_both_arms_with_the_reason(tmp_path: Path) -> None:
    words = tool_walk.tokenizer()
    words.chat_template = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] }}{% endfor %}"
    for name in ("target", "draft"):
        save_tiny(tmp_path / name, tool_walk.caller(0.6, 0.95), words)
    _, _, pairs = walked(tool_walk.policy(tmp_path, FROM_REQUEST), 2)
    for arm in (pairs[0].baseline, pairs[0].candidate):
        assert "cannot express tools and tool calls and content null and tool messages" in (arm.error or "")
        assert arm.valid is None


def test_a_schema_that_is_none_is_noted_and_not_judged(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tool_walk.TOOLS[0]["function"]["parameters"], "type", "objekt")  # type: ignore[index, arg-type]
    observer = Noting()
    _, evidence, pairs = walked(tool_walk.policy(models, FROM_REQUEST), 2, observer)
    assert [(p.baseline.valid, p.candidate.valid, p.error) for p in pairs] == [(None, None, None)] * 2
    noted = [facts for event, facts in observer.notes if event == "answer_not_judged"]
    assert [facts["ordinal"] for facts in noted] == [0, 1]
    assert "schema of tool weather is not a JSON Schema at /type" in str(noted[0]["detail"])
    gate = evidence.gate("structured_validity")
    assert gate is not None
    assert gate.n == 0
