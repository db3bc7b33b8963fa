"""Gate modes and the numbers of the performance gates in a policy file."""

from __future__ import annotations

import pytest

from canary.domain.errors import PolicyError
from canary.domain.modes import GateMode, Mode
from canary.flow.tools.policy_files import dump, load_text, schema
from tests.flow.policy_texts import LEGAL

MODES = """\
  modes:
    ttft_tail: {mode: required, why: first tokens matter here}
    memory: {mode: warn, why: the card is ours alone}
"""


def with_gates(lines: str) -> str:
    return LEGAL.replace("gates:\n", f"gates:\n{lines}")


def test_modes_are_read_and_written_back() -> None:
    policy = load_text(with_gates(MODES))
    wanted = (
        GateMode("memory", Mode.WARN, "the card is ours alone"),
        GateMode("ttft_tail", Mode.REQUIRED, "first tokens matter here"),
    )
    assert policy.gates.modes == wanted
    assert load_text(dump(policy)) == policy
    assert policy.content_hash != load_text(LEGAL).content_hash


def test_the_numbers_of_the_performance_gates_are_read_with_their_units() -> None:
    gates = load_text(
        with_gates(
            "  ttft_slo: 300ms\n  ttft_slack: 10ms\n  ttft_ratio: 1.2\n  memory_headroom: 0.1\n  speed_concurrency: 8\n"
        ).replace("batch_size: 8", "batch_size: 8\n  timing_concurrency: 8")
    ).gates
    assert (gates.ttft_slo_seconds, gates.ttft_slack_seconds, gates.ttft_ratio) == (0.3, 0.01, 1.2)
    assert (gates.memory_headroom, gates.speed_concurrency) == (0.1, 8)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("  modes: {tfft: {mode: observe, why: a}}\n", "Did you mean 'ttft'"),
        ("  modes: {losslessness: {mode: observe, why: a}}\n", "every other gate is required"),
        ("  modes: {speed: {mode: observe, why: a}}\n", "every other gate is required"),
        ("  modes: {ttft: {mode: ignored, why: a}}\n", "required, before_full, warn, observe"),
        ("  modes: {ttft: {mode: observe}}\n", "why"),
        ("  modes: {ttft: observe}\n", "must be a mapping"),
        ("  modes: [ttft]\n", "must be a mapping"),
        ("  ttft_ratio: 0.9\n", "at least 1"),
        ("  ttft_slo: 300\n", "its unit"),
        ("  memory_headroom: 1\n", "below 1"),
        ("  speed_concurrency: 0\n", "at least 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_a_remedy(lines: str, said: str) -> None:
    with pytest.raises(PolicyError, match="gates") as caught:
        load_text(with_gates(lines), "math.yaml")
    assert said in str(caught.value)
    assert caught.value.where.startswith(f"math.yaml:{LEGAL[: LEGAL.index('gates:')].count(chr(10)) + 2}:")


def test_the_schema_knows_the_modes() -> None:
    modes = schema()["properties"]["gates"]["properties"]["modes"]
    assert set(modes["properties"]) == {"ttft", "ttft_tail", "memory", "sample_ratio", "acceptance_drift"}
    assert modes["properties"]["ttft"]["required"] == ["mode", "why"]
