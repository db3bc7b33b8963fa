"""What a drill found, fault by fault, and what a policy may ask of drills before it promotes; pure values and sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from canary.domain.errors import ExitCode

CLEAN = "clean"  # the name under which a drill runs the candidate without a fault


class Outcome(StrEnum):
    """How one fault's run ended."""

    CAUGHT = "caught"
    MISSED = "missed"  # every gate that proves anything passed with the fault in
    UNDECIDED = "undecided"  # the requests were used up before either
    PASSED = "passed"  # a harmless control that nobody called a fault
    FALSE_ALARM = "false_alarm"  # a harmless control that was killed
    TOLERATED = "tolerated"  # the output is right and acceptance or speed stays within the policy all the same
    CANNOT_SHOW = "cannot_show"  # with this drafter or this traffic it changes nothing
    BLIND = "blind"  # no gate can see it, as the catalogue says


RAN = (Outcome.CAUGHT, Outcome.MISSED, Outcome.UNDECIDED)
BAD = (Outcome.MISSED, Outcome.FALSE_ALARM)
OPEN = (*BAD, Outcome.UNDECIDED)


@dataclass(frozen=True, slots=True)
class Drills:
    """Which drills a route must have passed before it leaves the shadow.

    Args:
        required: faults by name, or `all`; empty asks for none.
        max_age_seconds: a drill older than this does not count.
    """

    required: tuple[str, ...] = ()
    max_age_seconds: float = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class FaultResult:
    """One fault's run.

    Args:
        fault: its name, or `clean`.
        gate, reason: the gate that caught it and its reason code, which names the suspect; "" where none did.
        sentence: what was found, in words.
        requests, tokens: candidate requests and tokens up to the ordinal that decided, all of them where none did.
        seconds: until then, by the wall clock, the fault's engine already open.
    """

    fault: str
    outcome: Outcome
    gate: str = ""
    reason: str = ""
    sentence: str = ""
    requests: int = 0
    tokens: int = 0
    seconds: float = 0.0


def power(results: Sequence[FaultResult]) -> float | None:
    """Share caught of the faults that can show; None where none can. Harmless controls and blind spots do not count."""
    ran = [r for r in results if r.outcome in RAN]
    return sum(r.outcome is Outcome.CAUGHT for r in ran) / len(ran) if ran else None


def exit_code(results: Sequence[FaultResult]) -> ExitCode:
    """1 where a fault was missed or a harmless control killed, 3 where requests ran out, 4 where nothing ran, else 0."""
    outcomes = {r.outcome for r in results}
    if outcomes & set(BAD):
        return ExitCode.FAIL
    if Outcome.UNDECIDED in outcomes:
        return ExitCode.INCONCLUSIVE
    asked = [r for r in results if r.fault != CLEAN]
    can_show = any(r.outcome not in (Outcome.CANNOT_SHOW, Outcome.BLIND) for r in asked)
    return ExitCode.PASS if can_show else ExitCode.NO_DATA
