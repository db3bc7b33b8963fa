"""Policy files: every complaint at its place, one hash for one meaning, and a canonical form that comes back."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.domain.errors import ExitCode, PolicyError
from canary.domain.modes import GateMode, Mode, StratumMode
from canary.domain.policy import Gates, Limits, Policy, Shadow, Stage
from canary.domain.shadow_run import ShadowSchedule
from canary.flow.tools.policy_files import GATES, LIMITS, POLICY, SHADOW, dump, load, load_text, schema
from canary.shipped import shipped
from tests.flow.policy_texts import EDITS, LEGAL

DEMO = sorted(p for p in (shipped("policies") / "demo").glob("*.yaml") if not p.name.endswith(".cases.yaml"))
GOLDEN = Path(__file__).with_name("golden_policy_errors.txt")


def complaint(text: str) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        load_text(text, "math.yaml")
    return caught.value


def test_every_complaint_word_for_word() -> None:
    said = []
    for old, new in EDITS:
        assert old in LEGAL
        said.append(f"{old!r} -> {new!r}\n    {complaint(LEGAL.replace(old, new, 1))}\n")
    assert "".join(said) == GOLDEN.read_text(encoding="utf-8")


def test_every_complaint_names_a_place_and_a_remedy() -> None:
    for old, new in EDITS:
        error = complaint(LEGAL.replace(old, new, 1))
        assert error.exit_code == ExitCode.USAGE
        file, line, column = error.where.split(":")
        assert (file, error.remedy[-1]) == ("math.yaml", ".")
        assert int(line) >= 1
        assert int(column) >= 1


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.integers(0, len(LEGAL)),
    st.integers(0, 30),
    st.text(max_size=8) | st.sampled_from(["*a", "&a ", "!!x", "? ", "{", "- ", "\t"]),
)
def test_a_damaged_file_is_a_policy_or_a_complaint(at: int, cut: int, put: str) -> None:
    where = "math.yaml"
    try:
        load_text(LEGAL[:at] + put + LEGAL[at + cut :], "math.yaml")
    except PolicyError as error:
        where = error.where
    assert where.startswith("math.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "a word", "x" * 1_000_001, "route: \x00"])
def test_what_is_no_policy_at_all(text: str) -> None:
    assert complaint(text).remedy


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="No such file"):
        load(tmp_path / "missing.yaml")
    with pytest.raises(PolicyError, match="Is a directory"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"route: caf\xe9")
    with pytest.raises(PolicyError, match="not UTF-8 at byte 10"):
        load(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("10m", 600), ("1.5h", 5400), ("2d", 172_800), ("10 m", 600), ("0s", 0)],
)
def test_durations(written: str, seconds: float) -> None:
    assert load_text(LEGAL.replace("10m", written)).stages[1].bake_seconds == seconds


@pytest.mark.parametrize(
    ("written", "points"), [("5 %", 500), ("5%", 500), ("0.5 %", 50), ("12.34 %", 1234), ("500", 500), ("'5 %'", 500)]
)
def test_weights(written: str, points: int) -> None:
    assert load_text(LEGAL.replace("5 %", written)).stages[1].weight == points


@pytest.mark.parametrize(
    ("written", "value"), [("5e-3", 0.005), ("5E-3", 0.005), (".005", 0.005), ("0.005", 0.005), ("+0.005", 0.005)]
)
def test_numbers_that_yaml_1_1_calls_texts(written: str, value: float) -> None:
    assert load_text(LEGAL.replace("5e-3", written)).gates.gap_rate == value


def test_live_gates_and_a_waiver() -> None:
    waived = load_text(LEGAL).stages[1]
    assert (waived.live, waived.live_waived) == ((), "no users")
    gated = load_text(LEGAL.replace("live: waived\n    why: no users", "live: [speed, errors]")).stages[1]
    assert (gated.live, gated.live_waived) == (("speed", "errors"), None)


def test_one_meaning_has_one_hash() -> None:
    blocks = LEGAL.replace("limits:", "\0limits:").replace("gates:", "\0gates:").replace("stages:", "\0stages:").split("\0")
    spellings = ["".join([blocks[0], *order]) for order in itertools.permutations(blocks[1:])]
    spellings += [
        "# a comment\n" + LEGAL,
        LEGAL.replace("10m", "600s").replace("5 %", "500").replace("30s", "0.5m"),
        LEGAL.replace("0.02", "2e-2"),
        LEGAL.replace("batch_size: 8", "batch_size: 8\n  max_retries: 2"),  # a default spelt out
    ]
    assert len({load_text(s).content_hash for s in spellings}) == 1


def test_every_change_of_meaning_changes_the_hash() -> None:
    edits = [
        ("0.02", "0.03"),
        ("10m", "11m"),
        ("5 %", "6 %"),
        ("no users", "no users yet"),
        ("tokens: 4", "tokens: 5"),
        ("math", "rag"),
    ]
    texts = [
        LEGAL,
        *(LEGAL.replace(old, new, 1) for old, new in edits),
        LEGAL + "on_drift: keep\n",
        LEGAL + "labels: {team: x}\n",
    ]
    assert len({load_text(t).content_hash for t in texts}) == len(texts)


def test_the_hash_is_stable_across_versions() -> None:
    assert load_text(LEGAL).content_hash == "8176ea4c10ae499e81833a652472f82b2b35e8145917d906d4b398cfe326021f"


@pytest.mark.parametrize("path", DEMO, ids=lambda p: p.stem)
def test_the_canonical_form_comes_back(path: Path) -> None:
    policy = load(path)
    assert load_text(dump(policy)) == policy
    assert dump(load_text(dump(policy))) == dump(policy)


def test_odd_values_survive_the_canonical_form() -> None:
    policy = load_text(LEGAL.replace("10m", "0.1234567891s").replace("5 %", "0.07 %") + "labels: {'on': 'yes', n: '1'}\n")
    assert (policy.stages[1].bake_seconds, policy.stages[1].weight) == (0.1234567891, 7)
    assert load_text(dump(policy)) == policy
    huge = replace(policy, limits=replace(policy.limits, max_hold_seconds=123_456_789.25))
    assert load_text(dump(huge)).limits.max_hold_seconds == 123_456_789.25


def test_the_tables_cover_every_field() -> None:
    for section, of, beside in (
        (POLICY, Policy, {"content_hash"}),
        (GATES, Gates, set()),
        (LIMITS, Limits, set()),
        (SHADOW, Shadow, set()),
    ):
        attrs = {field.attr or key for key, field in section.fields.items()}
        assert attrs == {f.name for f in fields(of)} - beside


def test_every_default_is_legal_by_its_own_table() -> None:
    plain = {"shadow": SHADOW.write(_far(Shadow)), "gates": GATES.write(_far(Gates)), "limits": LIMITS.write(_far(Limits))}
    assert {k: set(v) for k, v in plain.items()} == {
        "shadow": {*SHADOW.fields},
        "gates": {*GATES.fields},
        "limits": {*LIMITS.fields},
    }
    for section, of, keys in ((GATES, Gates, GATES.fields), (LIMITS, Limits, LIMITS.fields), (SHADOW, Shadow, SHADOW.fields)):
        name = {Gates: "gates", Limits: "limits", Shadow: "shadow"}[of]
        defaults = {k: (f.reader, getattr(of(), f.attr or k)) for k, f in keys.items()}
        lines = "".join(f"  {k}: {reader.write(value)}\n" for k, (reader, value) in defaults.items() if value not in (None, ()))
        text = "\n".join(_without(LEGAL, name)) + f"\n{name}:\n{lines}"
        assert section.write(getattr(load_text(text), name)) == {}


def _far(of: type) -> object:
    """An instance that differs from every default, to see that each key is written."""
    other = {
        "modes": (GateMode("ttft", Mode.OBSERVE, "a test"),),
        "strata": (StratumMode("sampled", Mode.OBSERVE, "a test"),),
        "schedule": ShadowSchedule("0 3 * * *"),
    }
    return of(**{f.name: other.get(f.name) or (getattr(of(), f.name) or 0) + 1 for f in fields(of)})


def _without(text: str, section: str) -> list[str]:
    lines, skip = [], False
    for line in text.splitlines():
        skip = line == f"{section}:" or (skip and line.startswith(" "))
        lines += [] if skip else [line]
    return lines


def test_the_schema_follows_the_tables() -> None:
    found = schema()
    assert found["required"] == ["route", "subject", "stages"]
    assert found["additionalProperties"] is False
    margin = found["properties"]["gates"]["properties"]["margin"]
    assert margin == {
        "type": "number",
        "examples": [0.01],
        "exclusiveMinimum": 0,
        "exclusiveMaximum": 0.5,
        "description": "contamination or direction shift per token that a certificate excludes.",
        "default": 0.01,
    }
    stage = found["properties"]["stages"]["items"]
    assert set(stage["properties"]) == {"name", "weight", "bake", "live", "why", "approval"}
    assert stage["required"] == ["name", "weight"]
    assert found["properties"]["on_drift"]["enum"] == ["baseline", "keep"]


def test_the_demo_is_a_quick_look() -> None:
    assert [p.stem for p in DEMO] == ["creative", "faq", "math-drill", "math", "rag"]
    for policy in map(load, DEMO):
        drafter, gates = policy.subject.drafter, policy.gates
        assert (policy.subject.engine, policy.subject.target, policy.subject.dtype) == (
            "own",
            "SmolLM2-135M-Instruct",
            "bfloat16",
        )
        assert (drafter.name, drafter.num_speculative_tokens) == ("ngram", 4)
        assert (gates.margin, gates.request_margin, gates.row_margin) == (0.02, 0.05, 0.02)
        assert (gates.gap_rate, gates.outlier_rate, gates.noise_floor_positions) == (5e-3, 5e-3, 1000)
        assert (gates.acceptance_floor, gates.speed_ratio) == (0.10, 1.10)
        assert (policy.shadow.max_tokens, policy.shadow.batch_size) == (40, 8)
        assert (policy.quick_look, policy.economy) == (True, "carry")
        assert [(s.name, s.weight) for s in policy.stages] == [
            ("shadow", 0),
            ("canary-5", 500),
            ("canary-10", 1000),
            ("full", 10_000),
        ]
        assert all(s.live_waived and "demo" in s.live_waived for s in policy.stages[1:-1])
        assert max(s.bake_seconds for s in policy.stages) < 10
        assert policy.subject.fault == ("resample_from_target" if policy.route == "math-drill" else None)


def test_stages_are_what_the_file_says() -> None:
    assert load_text(LEGAL).stages == (
        Stage("shadow", 0),
        Stage("canary-5", 500, 600.0, (), "no users"),
        Stage("full", 10_000),
    )
