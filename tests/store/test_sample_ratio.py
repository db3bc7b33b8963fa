"""The gate `sample_ratio` from what both stores have counted: quiet, off its plan, or honest about what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from canary.domain.evidence import GateEvidence, Verdict
from canary.domain.mirrored import MirrorCount
from canary.domain.pairs import DrafterKind
from canary.domain.rollout import State
from canary.flow.attempt import engine_record
from canary.flow.ports import EngineInfo, Store
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.walk.assess import assess
from canary.flow.walk.mirror import Accepted, accept
from tests.flow.tiny_walk import policy_text, prompts

NOW = 1_700_000_000.0
INFO = EngineInfo("epoch", DrafterKind.ONE_HOT, 3, True, 100, {})


def start(store: Store, mirror_rate: float) -> None:
    """A shadow route whose engine has announced itself."""
    text = policy_text(Path("target")).replace("shadow: {", f"shadow: {{mirror_rate: {mirror_rate}, ")
    policy = load_text(text)
    rollout = apply_policy(store, policy, dump(policy), NOW)
    with store.transaction() as tx:
        tx.rollouts.put(replace(rollout, state=State.SHADOW, epoch="epoch", version=rollout.version + 1))
        record = {"engine": engine_record(INFO), "policy": policy.content_hash, "battery": None, "control": None, "last": None}
        tx.evidence.put("tiny", "epoch", 1, record)
        tx.commit()


def lose(store: Store, count: int, now: float) -> None:
    """The next prompts are claimed and their leases run out: tombstones."""
    with store.transaction() as tx:
        rollout = tx.rollouts.get("tiny", lock=True)
        assert rollout is not None
        for limit, at in ((count, now), (0, now + 20)):
            tx.claims.claim(rollout, limit=limit, before_ordinal=None, worker="w", now=at, lease_seconds=10.0, max_retries=0)
        tx.commit()


def ratio(store: Store) -> GateEvidence:
    evidence = assess(store, "tiny", NOW + 100)
    assert evidence is not None
    return next(g for g in evidence.gates if g.gate == "sample_ratio")


def test_counts_of_the_mirror_reach_the_gate(store: Store) -> None:
    start(store, 0.25)
    before = ratio(store)
    assert before.verdict is Verdict.NO_DATA
    assert before.details["not_tested"] == [
        "the mirrored share and the mirrored sample against the route's traffic: no request was counted at mirror rate 0.25",
        "completed against claimed ordinals: none of them has finished yet",
    ]
    batch = [replace(p, stream=n % 3 == 0) for n, p in enumerate(prompts(400, 0.7))]
    states = accept(store, batch, NOW)
    kept = states.count(Accepted.ACCEPTED)
    lose(store, 10, NOW)
    found = ratio(store)
    splits = found.details["splits"]
    assert isinstance(splits, dict)
    assert splits["mirrored requests"]["counts"] == {"kept": kept, "left out": 400 - kept}
    assert splits["mirrored requests by stream"]["seen"] == {"streamed": 134, "whole": 266}
    assert splits["mirrored requests by prompt length"]["seen"]["0-255 characters"] == 400
    assert splits["mirrored requests by endpoint"]["kept"] == {"chat/completions": kept, "completions": 0}
    for by, group in (("stratum", "sampled"), ("prompt length", "0-255 characters")):
        assert (splits[f"claimed requests by {by}"]["claimed"], splits[f"claimed requests by {by}"]["lost"]) == (
            {group: 10},
            {group: 10},
        )
    assert found.details["not_tested"] == []
    assert found.verdict is Verdict.NO_DATA, "tombstones are no folded requests"
    assert ratio(store) == found, "the second assessment counts nothing twice"


def test_a_mirror_that_loses_long_prompts_fails_the_gate_and_a_new_rate_starts_again(store: Store) -> None:
    """A3.22, A5.15: bodies above a size that never arrive are noticed."""
    start(store, 0.25)
    lossy = [
        MirrorCount("tiny", 0.25, "chat/completions", False, length, seen, kept)
        for length, seen, kept in ((0, 8_000, 2_000), (16_384, 800, 90))
    ]
    with store.transaction() as tx:
        tx.mirrored.add(lossy)
        tx.commit()
    found = ratio(store)
    assert (found.verdict, found.reason) == (Verdict.FAIL, "sample_ratio_mismatch")
    assert "mirrored requests by prompt length" in found.sentence
    assert "16384-65535 characters 90 of 800 (planned 0.25)" in found.sentence
    with store.transaction() as tx:
        assert tx.mirrored.get("tiny", 0.5) == []


def test_a_mirror_that_keeps_all_has_nothing_to_test(store: Store) -> None:
    start(store, 1.0)
    accept(store, prompts(30, 0.0), NOW)
    lose(store, 5, NOW)
    found = ratio(store)
    assert found.details["not_tested"] == [
        "the mirrored share and the mirrored sample against the route's traffic: the policy mirrors every request, so there is "
        "nothing to compare"
    ]
    with store.transaction() as tx:
        (counts,) = tx.mirrored.get("tiny", 1.0)
    assert (counts.seen, counts.kept) == (30, 30)


def test_a_record_from_before_counts_from_now_on(store: Store) -> None:
    """An attempt that was folded before outcomes were kept has none of those; later ordinals are counted."""
    start(store, 1.0)
    accept(store, prompts(30, 0.0), NOW)
    lose(store, 5, NOW)
    assess(store, "tiny", NOW + 100)
    with store.transaction() as tx:
        record = tx.evidence.get("tiny", "epoch", 1)
        assert record is not None
        tx.evidence.put("tiny", "epoch", 1, {name: value for name, value in record.items() if name != "outcomes"})
        tx.commit()
    assert len(ratio(store).details["not_tested"]) == 2  # type: ignore[arg-type]
    lose(store, 3, NOW + 50)
    splits = ratio(store).details["splits"]
    assert isinstance(splits, dict)
    assert splits["claimed requests by stratum"]["claimed"] == {"greedy": 3}
