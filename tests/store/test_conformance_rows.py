"""What both stores promise about everything but leases."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace

import pytest

from canary.domain.errors import ConflictError
from canary.domain.flag import Flag
from canary.domain.rollout import Rollout, State
from canary.domain.traffic import AnswerForm, Message, Prompt, SamplingParams, ToolCall
from canary.flow.ports import Claim, Store
from tests.store.samples import ROLLOUT, prompt

TRICKY = {
    "third": 1 / 3,
    "denormal": 5e-324,
    "largest": 1.7976931348623157e308,
    "negative_zero": -0.0,
    "nan": math.nan,
    "infinite": -math.inf,
    "tenths": [0.1 + 0.2, 1e23, 2**53 + 1],
    "text": "NUL \x00, lone \ud800, \U0001f642",
}


def bits(value: object) -> bytes:
    assert isinstance(value, float)
    return struct.pack("<d", value)


def claim_all(store: Store) -> list[Claim]:
    with store.transaction() as tx:
        found = tx.claims.claim(ROLLOUT, limit=100, before_ordinal=None, worker="w", now=0.0, lease_seconds=1.0, max_retries=0)
        tx.commit()
    return found


def test_a_repeat_is_a_no_op(store: Store) -> None:
    batch = [prompt(1), prompt(2), replace(prompt(1), body=b"other"), prompt(1, source="other")]
    with store.transaction() as tx:
        assert tx.prompts.add_many(batch, now=1.0) == [True, True, False, True]
        assert tx.prompts.add_many([prompt(2), prompt(3)], now=2.0) == [False, True]
        tx.commit()
    with store.transaction() as tx:
        assert tx.prompts.add_many([prompt(3), prompt(4, route="faq")], now=200_000.0) == [False, True]
        assert tx.prompts.add_many([], now=3.0) == []
        assert (tx.prompts.count("math"), tx.prompts.count("faq"), tx.prompts.count("none")) == (4, 1, 0)
        tx.commit()
    assert [(c.prompt.source, c.prompt.request_id, c.prompt.body) for c in claim_all(store)] == [
        ("gateway", "request-1", b"{}"),
        ("gateway", "request-2", b"{}"),
        ("other", "request-1", b"{}"),
        ("gateway", "request-3", b"{}"),
    ]


@pytest.mark.parametrize(
    "body",
    [b"", b'{"a": "\\u0000"}', b"\x00\xff\xfe raw", bytes(range(256)) * 40, '{"é": "\\ud800"}'.encode("latin-1")],
    ids=["empty", "escaped", "raw", "all", "latin"],
)
def test_a_prompt_comes_back_byte_for_byte(store: Store, body: bytes) -> None:
    given = Prompt(
        source="NUL \x00 source",
        request_id="long \u20ac " + "x" * 10_000,
        route="math",
        endpoint="completions",
        body=body,
        messages=(
            Message("assistant", None),
            Message("assistant", None, (ToolCall("1", "f", "{"), ToolCall("\x00", "g", '{"b": 1, "a": 2}'))),
            Message("user", ""),
            Message("tool", "\x00 \ud83d \U0001f642"),
            Message("tool", "", tool_call_id="1", name="f"),
        ),
        text="plain \x00 text",
        params=SamplingParams(
            max_tokens=10**30,
            temperature=0.1 + 0.2,
            top_k=5,
            top_p=1 / 3,
            stop=("\x00", "b"),
            seed=-(2**80),
            logit_bias=((7, 1 / 3), (9, -100.0)),
            bad_words=("\x00", "\U0001f642"),
            stop_token_ids=(1, 2),
            logprobs=0,
        ),
        form=AnswerForm('[{"z": "\x00", "a": 1}]', "named", "f", "json_schema", "{}"),
    )
    with store.transaction() as tx:
        assert tx.prompts.add_many([given], now=1.0) == [True]
        tx.commit()
    assert [c.prompt for c in claim_all(store)] == [given]


def test_names_are_not_run_together(store: Store) -> None:
    with store.transaction() as tx:
        new = tx.prompts.add_many(
            [replace(prompt(1), source="ab", request_id="c"), replace(prompt(1), source="a", request_id="bc")], now=1.0
        )
    assert new == [True, True]


def test_leaving_without_commit_keeps_nothing(filled: Store) -> None:
    def write(at: float) -> None:
        with filled.transaction() as tx:
            tx.prompts.add_many([prompt(77)], at)
            tx.claims.claim(ROLLOUT, limit=1, before_ordinal=None, worker="w", now=at, lease_seconds=1.0, max_retries=0)
            tx.rollouts.put(replace(ROLLOUT, version=2))
            tx.flags.put(Flag("math", 5, "salt"))
            tx.policies.put("math", "h", "text", at)
            tx.evidence.put("math", "epoch", 1, {"a": 1})
            tx.evidence.put_calibration("math", "epoch", 1, {"a": 1})
            tx.audit.append("math", "kind", "actor", {}, at)
            if at > 1:
                raise KeyError("the caller failed")

    write(1.0)
    with pytest.raises(KeyError):
        write(2.0)
    with filled.transaction() as tx:
        assert tx.prompts.count("math") == 10
        assert tx.claims.open_count("math", "epoch", 1) == 0
        assert tx.rollouts.get("math") == ROLLOUT
        assert tx.flags.get("math") is None
        assert tx.flags.snapshot(1.0).version == 0
        assert tx.policies.routes() == []
        assert tx.evidence.get("math", "epoch", 1) is None
        assert tx.evidence.get_calibration("math", "epoch", 1) is None
        assert tx.audit.list("math") == []


def test_what_follows_a_commit_needs_another(store: Store) -> None:
    with store.transaction() as tx:
        tx.flags.put(Flag("math", 5, "salt"))
        tx.commit()
        tx.flags.put(Flag("math", 6, "salt"))
    with store.transaction() as tx:
        assert tx.flags.get("math") == Flag("math", 5, "salt")


def test_folded_state_comes_back_to_the_bit(store: Store) -> None:
    with store.transaction() as tx:
        tx.evidence.put("math", "epoch", 1, {"old": 1})
        tx.evidence.put("math", "epoch", 1, TRICKY)
        tx.commit()
    with store.transaction() as tx:
        found = tx.evidence.get("math", "epoch", 1)
        assert tx.evidence.get("math", "epoch", 2) is None
    assert found is not None
    assert json.dumps(found) == json.dumps(TRICKY)
    for name in ("third", "denormal", "largest", "negative_zero", "infinite"):
        assert bits(found[name]) == bits(TRICKY[name])


def test_the_attempts_of_an_epoch_that_have_evidence(store: Store) -> None:
    with store.transaction() as tx:
        for route, epoch, attempt in (("math", "epoch", 10), ("math", "epoch", 2), ("math", "other", 3), ("faq", "epoch", 4)):
            tx.evidence.put(route, epoch, attempt, {})
        tx.evidence.put_calibration("math", "epoch", 11, {})
        tx.commit()
    with store.transaction() as tx:
        assert tx.evidence.attempts("math", "epoch") == [2, 10]
        assert tx.evidence.attempts("math", "never") == []


def test_a_calibration_is_frozen(store: Store) -> None:
    with store.transaction() as tx:
        assert tx.evidence.get_calibration("math", "epoch", 1) is None
        tx.evidence.put_calibration("math", "epoch", 1, TRICKY)
        tx.commit()
    with store.transaction() as tx:
        tx.evidence.put_calibration("math", "epoch", 1, dict(reversed(TRICKY.items())))
        tx.evidence.put_calibration("math", "epoch", 2, {"other": 1})
        tx.commit()
    with store.transaction() as tx, pytest.raises(ConflictError, match="already calibrated"):
        tx.evidence.put_calibration("math", "epoch", 1, TRICKY | {"third": math.nextafter(1 / 3, 1)})
    with store.transaction() as tx:
        assert json.dumps(tx.evidence.get_calibration("math", "epoch", 1), sort_keys=True) == json.dumps(TRICKY, sort_keys=True)


def test_rollouts_come_back_as_written_and_by_route(store: Store) -> None:
    other = Rollout(
        "faq", "h", State.ROLLED_BACK, 2, "", 3, 1e9 + 1 / 3, 0.1, 0.7, 4, True, "why: because", 9_000, 1e9 + 0.1, 1e9 + 0.7
    )
    with store.transaction() as tx:
        tx.rollouts.put(ROLLOUT)
        tx.rollouts.put(other)
        tx.commit()
    with store.transaction() as tx:
        assert tx.rollouts.list() == [other, ROLLOUT]
        assert tx.rollouts.get("faq", lock=True) == other
        assert tx.rollouts.get("none", lock=True) is None


@pytest.mark.parametrize("version", [1, 3])
def test_a_rollout_must_follow_the_stored_version(filled: Store, version: int) -> None:
    with filled.transaction() as tx, pytest.raises(ConflictError, match=f"version {version}"):
        tx.rollouts.put(replace(ROLLOUT, version=version))
    with filled.transaction() as tx:
        tx.rollouts.put(replace(ROLLOUT, version=2, state=State.HELD))
        tx.commit()
    with filled.transaction() as tx:
        found = tx.rollouts.get("math")
        assert found == replace(ROLLOUT, version=2, state=State.HELD)


def test_a_rollout_begins_with_version_one(store: Store) -> None:
    with store.transaction() as tx, pytest.raises(ConflictError):
        tx.rollouts.put(replace(ROLLOUT, version=2))


def test_every_write_of_a_flag_raises_the_snapshot_version(store: Store) -> None:
    a, b = Flag("a", 500, "salt"), Flag("b", 10_000, "salt", True, "killed: by hand", "full")
    versions = []
    for flag in (b, a, replace(a, weight=1000), replace(a, weight=1000)):
        with store.transaction() as tx:
            tx.flags.put(flag)
            versions.append(tx.flags.snapshot(5.5).version)
            tx.commit()
    assert versions == [1, 2, 3, 4]
    with store.transaction() as tx:
        snapshot = tx.flags.snapshot(7.25)
        assert tx.flags.get("b") == b
        assert tx.flags.get("none") is None
    assert (snapshot.version, snapshot.issued_at) == (4, 7.25)
    assert list(snapshot.flags.items()) == [("a", replace(a, weight=1000)), ("b", b)]


def test_an_empty_snapshot_has_version_zero(store: Store) -> None:
    with store.transaction() as tx:
        snapshot = tx.flags.snapshot(1.0)
    assert (snapshot.version, dict(snapshot.flags)) == (0, {})


def test_policies_keep_every_text_by_hash(store: Store) -> None:
    with store.transaction() as tx:
        assert (tx.policies.current("math"), tx.policies.get("h1"), tx.policies.routes()) == (None, None, [])
        tx.policies.put("math", "h1", "one: 1\n", 1.0)
        tx.policies.put("math", "h2", "two: 2\n", 2.0)
        tx.policies.put("faq", "h3", "three: 3\n", 3.0)
        tx.commit()
    with store.transaction() as tx:
        assert tx.policies.current("math") == ("h2", "two: 2\n")
        assert (tx.policies.get("h1"), tx.policies.get("h2")) == ("one: 1\n", "two: 2\n")
        assert tx.policies.routes() == ["faq", "math"]
        tx.policies.put("math", "h1", "one: 1\n", 4.0)
        assert tx.policies.current("math") == ("h1", "one: 1\n")


def test_the_audit_log_is_read_newest_first(store: Store) -> None:
    with store.transaction() as tx:
        for number in range(3):
            tx.audit.append("math", "advance", "ann", {"n": number, "x": [1 / 3]}, 1.5 + number)
        tx.audit.append("faq", "kill", "ben", {}, 9.0)
        tx.commit()
    with store.transaction() as tx:
        events = tx.audit.list("math", limit=2)
    assert [e["id"] for e in events] == [3, 2]
    assert events[0] == {"id": 3, "route": "math", "kind": "advance", "actor": "ann", "body": {"n": 2, "x": [1 / 3]}, "at": 3.5}
