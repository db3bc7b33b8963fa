"""The outbox of notices, job runs and orders, and who leads, in dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from canary.domain.notices import Notice, NoticeState
from canary.domain.schedule import JobOrder, JobRun
from canary.inmemory.state import Repository


class Notices(Repository):
    def add(self, given: Sequence[Notice]) -> None:
        for notice in given:
            self.state.notices.setdefault(notice.notice_id, notice)

    def claim(self, now: float, limit: int, lease_seconds: float) -> list[Notice]:
        pending = [n for n in self.state.notices.values() if n.state is NoticeState.PENDING and n.due_at <= now]
        taken = sorted(pending, key=lambda notice: notice.due_at)[:limit]
        self.state.notices.update({n.notice_id: replace(n, due_at=now + lease_seconds) for n in taken})
        return taken

    def put(self, notice: Notice) -> None:
        stored = self.state.notices.get(notice.notice_id)
        if stored is not None and stored.state is NoticeState.PENDING:
            self.state.notices[notice.notice_id] = notice

    def list(self, limit: int, state: NoticeState | None = None) -> list[Notice]:
        return [n for n in reversed(self.state.notices.values()) if state in (None, n.state)][:limit]

    def forget(self, before: float) -> int:
        old = [n.notice_id for n in self.state.notices.values() if n.state is not NoticeState.PENDING and n.due_at < before]
        for name in old:
            del self.state.notices[name]
        return len(old)


class Jobs(Repository):
    def add(self, run: JobRun) -> None:
        self.state.job_runs[max(self.state.job_runs, default=0) + 1] = run

    def runs(self, job: str, limit: int) -> list[JobRun]:
        return [run for run in reversed(self.state.job_runs.values()) if run.job == job][:limit]

    def forget(self, before: float) -> int:
        old = [number for number, run in self.state.job_runs.items() if run.ended_at < before]
        for number in old:
            del self.state.job_runs[number]
        return len(old)

    def paused(self) -> frozenset[str]:
        return frozenset(job for job, paused in self.state.paused_jobs.items() if paused)

    def pause(self, job: str, paused: bool) -> None:
        self.state.paused_jobs[job] = paused

    def ask(self, order: JobOrder) -> bool:
        return self.state.job_orders.setdefault(order.job, order) is order

    def orders(self) -> list[JobOrder]:
        return sorted(self.state.job_orders.values(), key=lambda order: (order.asked_at, order.job))

    def settle(self, order: JobOrder) -> None:
        found = self.state.job_orders.get(order.job)
        if found is not None and found.asked_at == order.asked_at:
            del self.state.job_orders[order.job]


class Leaders(Repository):
    def take(self, name: str, holder: str, until: float) -> int:
        token = self.state.leaders.get(name, (0, "", 0.0))[0] + 1
        self.state.leaders[name] = (token, holder, until)
        return token

    def renew(self, name: str, token: int, until: float) -> bool:
        if not self.leads(name, token):
            return False
        self.state.leaders[name] = (token, self.state.leaders[name][1], until)
        return True

    def until(self, name: str) -> float:
        found = self.state.leaders.get(name)
        return float("-inf") if found is None else found[2]

    def leads(self, name: str, token: int) -> bool:
        return name in self.state.leaders and self.state.leaders[name][0] == token
