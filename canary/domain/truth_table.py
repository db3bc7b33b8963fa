"""The truth table of decisions as data: rows tried from the top, the first that matches decides (DESIGN section 6).

A row says when it matches and what happens in shadow, at a canary, at full, and in a state of rest (pending, rolled back,
archived).
A held rollout keeps its thresholds armed: it takes its stage's kill or rollback, and otherwise waits for a person.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from canary.domain.evidence import GateRole, Source, Verdict
from canary.domain.facts import BASELINE_GATE, LOSSLESSNESS, RATIO_GATE, RESTING, Facts
from canary.domain.rollout import State


class Kind(StrEnum):
    """What may be decided."""

    ADVANCE = "advance"
    STAY = "stay"
    HOLD = "hold"
    ROLL_BACK = "roll_back"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Action:
    """One cell of the table.

    Args:
        page: whether a person is called.
        ramp: whether weight above half of the traffic comes down over `kill_ramp_seconds`.
    """

    kind: Kind
    page: bool = False
    ramp: bool = False


STAY, HOLD, KILL = Action(Kind.STAY), Action(Kind.HOLD), Action(Kind.KILL)
ADVANCE, ROLL_BACK = Action(Kind.ADVANCE), Action(Kind.ROLL_BACK)
STAY_PAGE, HOLD_PAGE, KILL_PAGE = Action(Kind.STAY, page=True), Action(Kind.HOLD, page=True), Action(Kind.KILL, page=True)
KILL_RAMP = Action(Kind.KILL, page=True, ramp=True)
ROLL_BACK_RAMP = Action(Kind.ROLL_BACK, page=True, ramp=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    Args:
        number: the row in DESIGN section 6; several cases may share one.
        case: its stable name, the decision's reason code.
    """

    number: int
    case: str
    when: Callable[[Facts], bool]
    shadow: Action
    canary: Action
    full: Action
    resting: Action = STAY

    def action(self, facts: Facts) -> Action:
        """The cell for a rollout's state and stage."""
        state = facts.rollout.state
        if state in RESTING:
            return self.resting
        cell = {"shadow": self.shadow, "full": self.full}.get(facts.stage.name, self.canary)
        if state is State.HELD and cell.kind not in (Kind.KILL, Kind.ROLL_BACK):
            return Action(Kind.HOLD, page=cell.page)
        return cell


def _killed(f: Facts) -> bool:
    return f.rollout.killed


def _baseline_failing(f: Facts) -> bool:
    return any(g.gate == BASELINE_GATE for g in f.failing(GateRole.HARNESS))


def _harness_broken(f: Facts) -> bool:
    """A/A over its limit; a ratio mismatch only blocks, and a live error kill is not suppressed."""
    broken = any(g.gate not in (BASELINE_GATE, RATIO_GATE) for g in f.failing(GateRole.HARNESS))
    return broken and not _live_errors(f)


def _live_errors(f: Facts) -> bool:
    return any(g.source is Source.LIVE and g.gate != LOSSLESSNESS for g in f.failing(GateRole.SAFETY))


def _safety_failed(f: Facts) -> bool:
    return bool(f.failing(GateRole.SAFETY))


def _inside_margin(f: Facts) -> bool:
    """Difference proven, but every certificate holds, no component test fired and the policy asks a person."""
    failing = f.failing(GateRole.SAFETY)
    certificates = [g for g in f.gates if g.role is GateRole.EQUIVALENCE]
    return (
        f.policy.inside_margin == "hold"
        and bool(failing)
        and all(g.gate == LOSSLESSNESS and g.details.get("component_fired") is False for g in failing)
        and bool(certificates)
        and all(g.verdict is Verdict.PASS for g in certificates)
    )


def _economy_failed(f: Facts) -> bool:
    return bool(f.failing(GateRole.ECONOMY))


def _economy_failed_live(f: Facts) -> bool:
    return any(g.source is Source.LIVE for g in f.failing(GateRole.ECONOMY))


def _could_not_measure(f: Facts) -> bool:
    return f.errors >= f.policy.limits.max_errors


def _no_data_to_baseline(f: Facts) -> bool:
    return f.no_data_too_long and f.policy.on_no_data == "baseline"


def _change_alarm(f: Facts) -> bool:
    return f.changed and not _no_data_to_baseline(f)


def _ready(f: Facts) -> bool:
    return f.all_pass and f.baking == 0


def _cooling(f: Facts) -> bool:
    return _ready(f) and f.cooling > 0


def _denied(f: Facts) -> bool:
    return _ready(f) and f.denied


def _awaiting(f: Facts) -> bool:
    return _ready(f) and not f.approved


def _drill_not_caught(f: Facts) -> bool:
    """Every gate lets an injected fault through, or all the requests that a shadow may use went by without a kill."""
    return f.policy.subject.fault is not None and (_ready(f) or f.expired)


ROWS: tuple[Row, ...] = (
    Row(1, "manual_kill", lambda f: f.manual_kill is not None, KILL, KILL, KILL, KILL),
    Row(1, "live_errors", lambda f: _killed(f) and _live_errors(f), KILL, KILL, KILL, KILL),
    Row(1, "killed", _killed, KILL, KILL, KILL, KILL),
    Row(2, "baseline_failing", _baseline_failing, HOLD_PAGE, HOLD_PAGE, STAY_PAGE),
    Row(3, "harness_broken", _harness_broken, HOLD, HOLD, HOLD_PAGE),
    Row(4, "inside_margin", _inside_margin, HOLD_PAGE, HOLD_PAGE, HOLD_PAGE),
    Row(4, "live_errors", _live_errors, KILL_PAGE, KILL_PAGE, KILL_PAGE, KILL_PAGE),
    Row(4, "safety_failed", _safety_failed, KILL_PAGE, KILL_PAGE, KILL_RAMP, KILL_PAGE),
    Row(5, "not_worth_it_live", _economy_failed_live, STAY, ROLL_BACK, ROLL_BACK),
    # Here, so that no row which leaves the weight where it is hides the page; one that lowers it comes first.
    Row(8, "change_alarm", _change_alarm, STAY, STAY, STAY_PAGE),
    Row(5, "not_worth_it", _economy_failed, STAY, HOLD, STAY),
    Row(6, "could_not_measure", _could_not_measure, HOLD, HOLD, STAY_PAGE),
    # Before row 7: that a fault got through so many requests is no less true while a gate still has no data.
    Row(9, "drill_not_caught", _drill_not_caught, HOLD_PAGE, HOLD_PAGE, HOLD_PAGE),
    Row(7, "no_data_to_baseline", _no_data_to_baseline, STAY, ROLL_BACK, ROLL_BACK_RAMP),
    Row(7, "no_data_too_long", lambda f: f.no_data_too_long, STAY, ROLL_BACK, STAY_PAGE),
    Row(7, "no_pairs", lambda f: f.age is None, STAY, STAY, STAY_PAGE),
    Row(7, "stale", lambda f: f.stale, STAY, STAY, STAY_PAGE),
    Row(7, "no_data", lambda f: f.missing_data, STAY, STAY, STAY),
    Row(8, "expired", lambda f: not f.all_pass and f.expired, HOLD, HOLD, STAY),
    Row(8, "waited_too_long", lambda f: not f.all_pass and f.waited_too_long, HOLD, HOLD, STAY),
    Row(8, "not_yet", lambda f: not f.all_pass, STAY, STAY, STAY),
    Row(8, "baking", lambda f: not _ready(f), STAY, STAY, STAY),
    Row(9, "cooling_down", _cooling, STAY, STAY, STAY),
    Row(9, "approval_expired", _denied, HOLD_PAGE, HOLD_PAGE, STAY),
    Row(9, "awaiting_approval", _awaiting, STAY, STAY, STAY),
    Row(9, "all_pass", _ready, ADVANCE, ADVANCE, STAY),
)
