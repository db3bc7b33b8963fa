"""The one table from a decision to an exit code: `canary gate` and the verdict object both ask it, and nothing else decides.

It reads what was decided and never judges a gate again, so the same evidence has the same code everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from canary.domain.errors import ExitCode
from canary.domain.evidence import GateRole, Verdict

PASSING = ("all_pass", "baking")
NO_DATA_ROW = 7
NO_DATA_ROW_WITH_PAIRS = "no_data"  # the case of row 7 where fresh pairs are there and a gate has too few of them


def exit_code(
    decision: Mapping[str, Any],
    gates: Sequence[Mapping[str, Any]],
    num_pairs: int,
    *,
    killed: bool = False,
    stale: bool = False,
) -> ExitCode:
    """The verdict on a decision as an exit code (DESIGN section 3); its name in lower case is the verdict's word.

    The first that holds: killed (6); a gate of the subject fails, or a drill got through (1); there is nothing to decide on (4);
    all required gates pass, though the stage may still bake (0); anything else (3).

    - A failure stands before missing data, as in the truth table: what was found is not undone by silence.
    - No data is: no pair, no fresh pair or decision, or none for longer than the policy allows. With fresh pairs of which a gate
      has too few the answer is inconclusive, since the remedy is more requests and `needed` says how many.
    - A gate that met an error could not measure, which is not a failure: inconclusive. 5 is for what does not answer at all.
    - A failing harness gate says that the measuring is broken or the baseline is failing, not the candidate: inconclusive.
    - Held and rolled back routes are judged by the same rules; only the reasons `all_pass` and `baking` ever pass.

    Args:
        decision, gates: in the plain form that the control loop keeps (`asdict`). Verdicts are read from `decision.missing`,
            where what is not about the subject has been set aside already; `gates` give the roles.
        num_pairs: folded pairs behind the decision.
        killed: the route's kill switch is on, whatever was decided.
        stale: the decision, or the newest pair behind it, is too old to count.
    """
    reason, missing = decision["reason"], decision["missing"]
    if killed or decision["kind"] == "kill":
        return ExitCode.KILLED
    harness = {g["gate"] for g in gates if g["role"] == GateRole.HARNESS}
    if reason == "drill_not_caught" or any(m["verdict"] == Verdict.FAIL and m["gate"] not in harness for m in missing):
        return ExitCode.FAIL
    if stale or num_pairs == 0 or (decision["row"] == NO_DATA_ROW and reason != NO_DATA_ROW_WITH_PAIRS):
        return ExitCode.NO_DATA
    return ExitCode.PASS if reason in PASSING and not missing else ExitCode.INCONCLUSIVE
