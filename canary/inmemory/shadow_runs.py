"""Scheduled shadow runs, in dictionaries."""

from __future__ import annotations

from canary.domain.shadow_run import ShadowRun
from canary.inmemory.state import Repository


class ShadowRuns(Repository):
    def open(self, run: ShadowRun) -> bool:
        return self.state.shadow_runs.setdefault((run.route, run.due_at), run) is run

    def newest(self, route: str) -> ShadowRun | None:
        mine = (run for run in self.state.shadow_runs.values() if run.route == route)
        return max(mine, key=lambda run: run.due_at, default=None)

    def put(self, run: ShadowRun) -> None:
        if (run.route, run.due_at) in self.state.shadow_runs:
            self.state.shadow_runs[run.route, run.due_at] = run

    def forget(self, before: float) -> int:
        old = [key for key, run in self.state.shadow_runs.items() if run.until < before]
        for key in old:
            del self.state.shadow_runs[key]
        return len(old)
