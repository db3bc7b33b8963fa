"""Observations are read strictly, kept once, and never in part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from canary.domain.errors import UsageError
from canary.domain.observations import Observation
from canary.domain.pairs import Arm
from canary.flow.tools import observations as files
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.walk.observe import MAX_BATCH, Observed, observe, read_observation
from canary.inmemory import InMemoryStore
from tests.flow.tiny_walk import policy_text

NOW = 1_700_000_000.0
GOOD: dict[str, Any] = {"observation_id": "r1", "arm": "candidate", "observed_at": NOW - 5, "finish_reason": "stop"}


@pytest.fixture
def store() -> InMemoryStore:
    made, policy = InMemoryStore(), load_text(policy_text(Path("none")))
    apply_policy(made, policy, dump(policy), NOW - 100)
    return made


def kept(store: InMemoryStore) -> list[Observation]:
    with store.transaction() as tx:
        return [o for _, o in tx.observations.after("tiny", 0, 10_000)]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"observation_id": None}, "observation_id is missing"),
    ({"observation_id": ""}, "observation_id must have"),
    ({"observation_id": "x" * 513}, "observation_id must have"),
    ({"arm": "control"}, "arm must be one of baseline, candidate"),
    ({"arm": 1}, "arm must be a string"),
    ({"observed_at": "now"}, "observed_at must be a number"),
    ({"observed_at": True}, "observed_at must be a number"),
    ({"observed_at": 0}, "observed_at must be seconds"),
    ({"observed_at": 10**400}, "observed_at is too large"),
    ({"observed_at": NOW + 1000}, "observed_at is 1000 s in the future"),
    ({"finish_reason": "done"}, "finish_reason must be one of"),
    ({"finish_reason": None}, "nothing else was measured"),
    ({"ttft_seconds": -0.1}, "ttft_seconds is -0.1, but"),
    ({"ttft_seconds": 0}, "ttft_seconds is 0, but"),
    ({"seconds_per_token": 1e6}, "seconds_per_token is 1e+06, but"),
    ({"thumbs": 2}, "thumbs is 2, but"),
    ({"thumbs": True}, "thumbs must be a whole number"),
    ({"task_success": 1}, "task_success must be true or false"),
    ({"memory_headroom": 1.5}, "memory_headroom is 1.5, but"),
    ({"weight": 10_001}, "weight is 10001, but"),
    ({"num_draft_tokens": 4}, "needs num_drafts and num_accepted_tokens"),
    ({"num_drafts": 1, "num_draft_tokens": 4, "num_accepted_tokens": 5}, "num_accepted_tokens is 5, more than the 4"),
    ({"num_drafts": 5, "num_draft_tokens": 4, "num_accepted_tokens": 0}, "num_drafts is 5, which does not fit"),
    ({"num_drafts": 0, "num_draft_tokens": 4, "num_accepted_tokens": 0}, "num_drafts is 0, which does not fit"),
    ({"num_drafts": -1, "num_draft_tokens": 4, "num_accepted_tokens": 0}, "each from 0 to"),
    ({"concurrency": 0}, "concurrency is 0, but must be from 1"),
    ({"accepted_per_position": [2, 1]}, "accepted_per_position needs num_drafts"),
    *(
        ({"num_drafts": 2, "num_draft_tokens": 8, "num_accepted_tokens": 3, "accepted_per_position": given}, words)
        for given, words in (
            ([2, 2], "must fall from at most 2 and add up to the 3"),
            ([1, 2], "must fall from at most 2 and add up to the 3"),
            ([3], "must fall from at most 2"),
            ([2, 2, -1], "must fall from at most 2"),
            ([], "must have 1 to 64 counts"),
            ([1.5, 1.5], "must be a list of whole numbers"),
            (3, "must be a list of whole numbers"),
        )
    ),
    ({"prompt": "secret"}, "prompt is unknown"),
    ({"route": "other"}, "route is not 'tiny'"),
]


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_every_mistake_is_named_with_its_line(tmp_path: Path, store: InMemoryStore, change: dict[str, Any], words: str) -> None:
    file = tmp_path / "seen.ndjson"
    lines = [GOOD, GOOD | {"observation_id": "r2"} | change]
    file.write_text("\n\n".join(json.dumps(line) for line in lines))
    with pytest.raises(UsageError) as caught:
        files.read_file(file, "tiny", NOW)
    assert caught.value.where == f"{file}:3"
    assert words in caught.value.detail
    assert "secret" not in str(caught.value)
    assert kept(store) == []


@pytest.mark.parametrize("line", [b"{", b"[]", b"NaN", b'{"observed_at": NaN}', b"\xff", b"[" * 100_000, b" " * 70_000 + b"1"])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "seen.ndjson"
    file.write_bytes(json.dumps(GOOD).encode() + b"\r\n" + line)
    with pytest.raises(UsageError) as caught:
        files.read_file(file, "tiny", NOW)
    assert caught.value.where == f"{file}:2"


def test_a_file_is_kept_once(tmp_path: Path, store: InMemoryStore) -> None:
    file = tmp_path / "seen.ndjson"
    lines = [GOOD | {"observation_id": f"r{n}", "route": "tiny"} for n in range(MAX_BATCH + 5)]
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(json.dumps(line) for line in [*lines, lines[0]]).encode() + b"\r\n")
    found = files.read_file(file, "tiny", NOW)
    assert files.keep(store, found, NOW) == {"new": MAX_BATCH + 5, "repeat": 1}
    assert files.keep(store, found, NOW) == {"new": 0, "repeat": MAX_BATCH + 6}
    assert [o.observation_id for o in kept(store)] == [f"r{n}" for n in range(MAX_BATCH + 5)]


def test_a_batch_is_kept_whole_or_not_at_all(store: InMemoryStore) -> None:
    good = read_observation(GOOD, "tiny")
    wrong = Observation("tiny", "r2", Arm.BASELINE, NOW, "stop", thumbs=3)
    elsewhere = Observation("nowhere", "r3", Arm.BASELINE, NOW, "stop")
    for batch, where in (([good, wrong], "/1/thumbs"), ([good] * (MAX_BATCH + 1), ""), ([good, elsewhere], "")):
        with pytest.raises(UsageError) as caught:
            observe(store, batch, NOW)
        assert caught.value.where == where
        assert kept(store) == []
    assert observe(store, [], NOW) == []
    assert observe(store, [good, good], NOW) == [Observed.NEW, Observed.REPEAT]


def test_an_engine_message_is_cut() -> None:
    store, policy = InMemoryStore(), load_text(policy_text(Path("none")))
    apply_policy(store, policy, dump(policy), NOW)
    observe(store, [Observation("tiny", "r", Arm.BASELINE, NOW, error="e" * 5000)], NOW)
    assert [len(o.error or "") for o in kept(store)] == [200]
