"""Scheduled shadow runs on both stores: opened once, kept over restarts, and all that a worker may take."""

from __future__ import annotations

import threading
from dataclasses import replace

from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.domain.shadow_run import ShadowRun, ShadowSchedule
from canary.flow.attempt import locked_rollout
from canary.flow.ports import Claim, Store
from canary.flow.shadow_runs import allowance, open_due
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.walk.mirror import accept
from canary.store.unit_of_work import PostgresStore
from tests.api.served import policy_of
from tests.flow import tiny_walk

THREE = 1_704_164_400.0  # 2 January 2024, 03:00 UTC
NIGHTLY = ShadowSchedule("0 3 * * *", max_requests=5, max_minutes=30)


def routed(store: Store, schedule: ShadowSchedule | None, prompts: int = 20, route: str = "math") -> Policy:
    plain = policy_of(route)
    text = dump(replace(plain, shadow=replace(plain.shadow, schedule=schedule)))
    policy = load_text(text, name=route)
    rollout = apply_policy(store, policy, text, THREE - 7200)
    with store.transaction() as tx:
        tx.rollouts.put(replace(rollout, state=type(rollout.state).SHADOW, epoch="e", version=rollout.version + 1))
        tx.commit()
    accept(store, tiny_walk.prompts(prompts, 1.0, route=route), THREE - 3600)
    return policy


def take(store: Store, policy: Policy, now: float, limit: int = 3) -> list[Claim]:
    """What the walk's claim does about a schedule."""
    with store.transaction() as tx:
        rollout: Rollout = locked_rollout(tx, policy.route)
        scheduled = allowance(tx, rollout, policy, now)
        bounds = {"before_ordinal": scheduled.before(None), "lease_seconds": 60.0, "max_retries": 2}
        found = tx.claims.claim(rollout, limit=limit, worker="w", now=now, **bounds)  # type: ignore[arg-type]
        scheduled.keep(tx)
        tx.commit()
    return found


def finish(store: Store, claims: list[Claim]) -> None:
    with store.transaction() as tx:
        for claim in claims:
            assert tx.claims.finish(claim, failed=True)
        tx.commit()


def ordinals(claims: list[Claim]) -> list[int]:
    return [claim.ordinal for claim in claims]


def test_without_a_schedule_prompts_are_taken_as_they_come(store: Store) -> None:
    policy = routed(store, None)
    assert ordinals(take(store, policy, THREE - 1)) == [0, 1, 2]
    assert open_due(store, THREE) == "no run is due"


def test_prompts_are_taken_from_the_scheduled_time_on_up_to_the_runs_requests(store: Store) -> None:
    policy = routed(store, NIGHTLY)
    assert take(store, policy, THREE - 1) == []
    assert open_due(store, THREE - 1) == "no run is due"
    assert take(store, policy, THREE + 1) == [], "only a scheduler opens a run"
    assert open_due(store, THREE + 2) == "opened a run for math"
    for taken in ([0, 1, 2], [3, 4], []):
        found = take(store, policy, THREE + 3)
        assert ordinals(found) == taken
        finish(store, found)
    with store.transaction() as tx:
        run = tx.shadow_runs.newest("math")
    assert run == ShadowRun("math", THREE, THREE + 2, THREE + 1802, 5, taken=5)
    assert open_due(store, THREE + 86_400) == "opened a run for math"
    assert ordinals(take(store, policy, THREE + 86_401)) == [5, 6, 7]


def test_a_run_ends_by_its_time_and_what_it_began_is_finished_outside(store: Store) -> None:
    policy = routed(store, replace(NIGHTLY, max_requests=None))
    open_due(store, THREE)
    assert ordinals(take(store, policy, THREE + 1)) == [0, 1, 2]
    late = take(store, policy, THREE + 1801)
    assert ordinals(late) == [0, 1, 2], "a lease that ran out is run on; nothing new is taken"
    assert [claim.tries for claim in late] == [1, 1, 1]
    assert take(store, policy, THREE + 1802) == []


def test_a_lease_that_is_taken_again_is_not_counted_again(store: Store) -> None:
    policy = routed(store, NIGHTLY)
    open_due(store, THREE)
    first = take(store, policy, THREE + 1)
    with store.transaction() as tx:
        tx.claims.release([claim.token for claim in first])
        tx.commit()
    assert ordinals(take(store, policy, THREE + 2)) == [0, 1, 2]
    assert ordinals(take(store, policy, THREE + 3)) == [3, 4]


def test_two_schedulers_open_one_run_and_it_outlives_them(store: Store) -> None:
    policy = routed(store, NIGHTLY)
    said: list[str] = []
    both = [threading.Thread(target=lambda: said.append(open_due(store, THREE + 1))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(said) == ["no run is due", "opened a run for math"]
    after = PostgresStore(store.url.render_as_string(hide_password=False)) if isinstance(store, PostgresStore) else store
    assert ordinals(take(after, policy, THREE + 5)) == [0, 1, 2], "another process, the same run"
    assert open_due(after, THREE + 6) == "no run is due"
    if isinstance(after, PostgresStore):
        after.close()


def test_a_killed_route_opens_none_and_old_runs_are_forgotten(store: Store) -> None:
    routed(store, NIGHTLY)
    with store.transaction() as tx:
        rollout = locked_rollout(tx, "math")
        tx.rollouts.put(replace(rollout, killed=True, version=rollout.version + 1))
        tx.commit()
    assert open_due(store, THREE) == "no run is due"
    with store.transaction() as tx:
        assert tx.shadow_runs.open(ShadowRun("math", 1.0, 1.0, 2.0))
        assert not tx.shadow_runs.open(ShadowRun("math", 1.0, 9.0, 9.0))
        assert tx.shadow_runs.open(ShadowRun("math", 5.0, 5.0, 6.0))
        assert (tx.shadow_runs.forget(3.0), tx.shadow_runs.newest("math")) == (1, ShadowRun("math", 5.0, 5.0, 6.0))
        assert tx.shadow_runs.newest("other") is None
