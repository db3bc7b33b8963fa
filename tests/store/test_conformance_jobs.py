"""What both stores promise about notices, job runs and terms of leaders."""

from __future__ import annotations

from dataclasses import replace

from canary.domain.notices import Notice, NoticeState
from canary.domain.schedule import JobRun, Outcome
from canary.flow.ports import Store


def notice(number: int, due_at: float = 10.0) -> Notice:
    return Notice(f"id-{number}", "ops", "kill", "math", "{}", 1 / 3, due_at)


def test_a_notice_is_claimed_by_one_and_comes_back_when_the_lease_is_over(store: Store) -> None:
    with store.transaction() as tx:
        tx.notices.add([notice(1), notice(2, 5.0), notice(3, 99.0)])
        tx.notices.add([replace(notice(1), body="other")])
        tx.notices.add([])
        tx.commit()
    with store.transaction() as tx:
        assert [n.notice_id for n in tx.notices.claim(10.0, 9, 60.0)] == ["id-2", "id-1"]
        tx.commit()
    with store.transaction() as tx:
        assert tx.notices.claim(69.0, 9, 60.0) == []
        assert {n.notice_id for n in tx.notices.claim(70.0, 9, 60.0)} == {"id-1", "id-2"}
        assert {n.notice_id for n in tx.notices.list(9)} == {"id-1", "id-2", "id-3"}


def test_what_was_sent_is_never_pending_again(store: Store) -> None:
    with store.transaction() as tx:
        tx.notices.add([notice(1), notice(2)])
        tx.notices.put(replace(notice(1), state=NoticeState.SENT, tries=1))
        tx.notices.put(replace(notice(1), error="status 500", tries=2))
        tx.notices.put(replace(notice(2), state=NoticeState.DEAD, error="status 500", tries=9))
        tx.commit()
    with store.transaction() as tx:
        assert [(n.notice_id, n.tries, n.created_at) for n in tx.notices.list(9, NoticeState.SENT)] == [("id-1", 1, 1 / 3)]
        assert [(n.notice_id, n.error) for n in tx.notices.list(9, NoticeState.DEAD)] == [("id-2", "status 500")]
        assert tx.notices.list(9, NoticeState.PENDING) == []
        assert tx.notices.forget(10.0) == 0
        assert tx.notices.forget(11.0) == 2


def test_job_runs_come_back_newest_first_and_pauses_last(store: Store) -> None:
    runs = [JobRun("retention", n / 3, n / 3 + 1, Outcome.DONE, "scheduler", f"run {n}") for n in range(3)]
    with store.transaction() as tx:
        for run in runs:
            tx.jobs.add(run)
        tx.jobs.pause("retention", True)
        tx.jobs.pause("drills", True)
        tx.jobs.pause("drills", False)
        tx.commit()
    with store.transaction() as tx:
        assert tx.jobs.runs("retention", 2) == runs[:0:-1]
        assert tx.jobs.runs("drills", 2) == []
        assert tx.jobs.paused() == {"retention"}
        assert tx.jobs.forget(1.1) == 1
        assert len(tx.jobs.runs("retention", 9)) == 2


def test_each_term_has_a_higher_token_and_ends_the_one_before(store: Store) -> None:
    with store.transaction() as tx:
        assert tx.leaders.until("scheduler") == float("-inf")
        assert not tx.leaders.leads("scheduler", 1)
        assert tx.leaders.take("scheduler", "a", 10.5) == 1
        assert tx.leaders.leads("scheduler", 1)
        assert tx.leaders.take("scheduler", "b", 20.5) == 2
        assert not tx.leaders.renew("scheduler", 1, 99.0)
        assert not tx.leaders.leads("scheduler", 1)
        assert tx.leaders.renew("scheduler", 2, 30.5)
        assert tx.leaders.until("scheduler") == 30.5
        tx.commit()
