"""What the demo shows while it runs and when it ends: one row a route, nothing in it scripted."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table

from canary.domain.decide import Decision
from canary.domain.evidence import Evidence, GateEvidence, GateRole, Verdict
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout, State


@dataclass
class RouteView:
    """All that is known about one route of the demo.

    Args:
        sent: prompts that were mirrored.
        running: pairs that a worker has in hand.
        share: share of the gateway's newest units on the candidate.
    """

    policy: Policy
    sent: int
    rollout: Rollout | None = None
    decision: Decision | None = None
    evidence: Evidence | None = None
    running: int = 0
    weight: int = 0
    share: float = 0.0

    @property
    def folded(self) -> int:
        return self.evidence.folded if self.evidence else 0

    def gate(self, name: str) -> GateEvidence | None:
        return self.evidence.gate(name) if self.evidence else None

    @property
    def stage(self) -> str:
        """The stage's name, or the state where that says more."""
        if self.rollout is None:
            return "pending"
        if self.rollout.killed:
            return "killed"
        if self.rollout.state in (State.HELD, State.ROLLED_BACK):
            return self.rollout.state.value.replace("_", " ")
        return self.policy.stages[self.rollout.stage].name

    @property
    def settled(self) -> bool:
        """Nothing more can happen to the route without new prompts or a person."""
        if self.rollout is None or self.decision is None:
            return False
        if self.rollout.killed or self.rollout.state in (State.FULL, State.HELD, State.ROLLED_BACK):
            return True
        return self.folded >= self.sent and self.decision.kind == "stay" and self.decision.reason != "baking"


def equivalence(view: RouteView) -> str:
    """Certified, not yet, or killed, in a cell's words."""
    if view.rollout is not None and view.rollout.killed:
        cause = view.rollout.reason.partition(":")[0].replace("_", " ")
        proof = view.gate("losslessness")
        return f"[red]killed: {cause}, proven in {proof.n if proof else 0} requests[/]"
    gates = [g for g in view.evidence.gates if g.role is GateRole.EQUIVALENCE] if view.evidence else []
    if not gates:
        return "no data yet"
    lacking = [g for g in gates if g.verdict is not Verdict.PASS]
    if not lacking:
        certified = min((g.n for g in gates if g.unit == "requests"), default=0)
        return f"[green]certified at margin {view.policy.gates.margin:g} over {certified} requests[/]"
    worst = max(lacking, key=lambda g: g.needed or 0)
    more = f"{worst.needed} more requests" if worst.needed else worst.reason
    return f"not yet: {more} ({worst.gate.replace('_', ' ')})"


def certificate_progress(view: RouteView) -> float | None:
    """Share of the slowest equivalence gate's evidence that is in, 0 to 1."""
    gates = [g for g in view.evidence.gates if g.role is GateRole.EQUIVALENCE] if view.evidence else []
    if not gates:
        return None
    return min(1.0 if g.verdict is Verdict.PASS else (g.progress or 0.0) for g in gates)


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def speed(view: RouteView) -> str:
    """Median speed-up with its interval."""
    gate = view.gate("speed")
    if gate is None or gate.value is None:
        return "-"
    return f"{gate.value:.2f}x [{_number(gate.low)}, {_number(gate.high)}]"


def _mean_accepted(view: RouteView) -> str:
    gate = view.gate("acceptance")
    found = gate.details.get("mean_accepted_tokens") if gate else None
    return _number(found if isinstance(found, float) else None)


def live_table(views: dict[str, RouteView], eta: str) -> Table:
    """The progress display."""
    table = Table(title=f"Shadow running, {eta} left. Ctrl-C loses nothing.", title_justify="left", box=box.SIMPLE)
    for column in ("route", "pairs", "acceptance", "speed-up", "certificates", "stage", "weight", "candidate traffic"):
        table.add_column(column)
    for route, view in views.items():
        acceptance = view.gate("acceptance")
        progress = certificate_progress(view)
        table.add_row(
            route,
            f"{view.folded}/{view.sent}" + (f" +{view.running}" if view.running else ""),
            _number(acceptance.value if acceptance else None),
            speed(view),
            "-" if progress is None else f"{progress:.0%}",
            view.stage,
            f"{view.weight / 100:g} %",
            f"{view.share:.0%}",
        )
    return table


def final_table(views: dict[str, RouteView]) -> Table:
    """The result, one row a route."""
    title = "Result. A quick look: wide margins, live gates waived, the subject is Canary's own engine on this machine."
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for column in ("route", "stage", "weight"):
        table.add_column(column, no_wrap=True)
    for column in ("accepted", "median speed-up", "equivalence"):
        table.add_column(column)
    for route, view in views.items():
        acceptance = view.gate("acceptance")
        table.add_row(
            route,
            view.stage,
            f"{view.weight / 100:g} %",
            f"{_number(acceptance.value if acceptance else None, '.0%')}, {_mean_accepted(view)} per draft",
            speed(view),
            equivalence(view),
        )
    return table


def sentences(views: dict[str, RouteView], home: str) -> str:
    """What was decided about each route, in words, and the command that shows why."""
    lines = []
    for route, view in views.items():
        said = view.decision.sentence if view.decision else "nothing yet"
        if view.rollout is not None and view.rollout.killed:
            said = view.rollout.reason.partition(": ")[2]
        lines.append(f"[bold]{route}[/]: {escape(said)}")
    return "\n".join([*lines, "", f"Why: CANARY_HOME={home} canary rollouts explain ROUTE"])


def as_json(view: RouteView) -> dict[str, object]:
    """One route's row for `--json`."""
    acceptance, pace = view.gate("acceptance"), view.gate("speed")
    return {
        "stage": view.stage,
        "weight": view.weight,
        "pairs": view.folded,
        "acceptance_rate": acceptance.value if acceptance else None,
        "mean_accepted_tokens": acceptance.details.get("mean_accepted_tokens") if acceptance else None,
        "median_speed_up": {"value": pace.value, "low": pace.low, "high": pace.high} if pace else None,
        "equivalence": {
            g.gate: {"verdict": g.verdict.value, "reason": g.reason, "n": g.n, "needed": g.needed}
            for g in (view.evidence.gates if view.evidence else ())
            if g.role is GateRole.EQUIVALENCE
        },
        "killed": view.rollout.reason if view.rollout and view.rollout.killed else None,
        "reason": view.decision.reason if view.decision else None,
        "sentence": view.decision.sentence if view.decision else None,
    }
