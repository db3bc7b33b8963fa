"""Which ordinals the economy gates count: the whole attempt, or those since the rollout entered its stage.

It only looks after the window's place in the attempt's evidence record; deciding and counting happen elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from canary.domain.evidence import GateEvidence
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.flow.ports import FoldItem
from canary.stats.controlled import ControlledBattery
from canary.stats.window import Window, WindowState


@dataclass(frozen=True, slots=True)
class Economy:
    """What a stage's economy gates count, folded so far.

    Args:
        window, state: None where the whole attempt counts.
        entered: the record does not hold this window yet.
    """

    window: Window | None = None
    state: WindowState | None = None
    entered: bool = False

    def fold(self, items: Iterable[FoldItem]) -> Economy:
        """With the attempt's next ordinals; the given one stays as it was."""
        if self.window is None or self.state is None:
            return self
        return replace(self, state=self.window.fold(self.state, items))

    def judge(self, gates: tuple[GateEvidence, ...]) -> tuple[GateEvidence, ...]:
        """The attempt's gates, the restarted ones as the window finds them."""
        if self.window is None or self.state is None:
            return gates
        return self.window.judge(self.state, gates)

    def to_json(self) -> dict[str, Any]:
        """What the evidence record keeps, as a part of it; nothing where the whole attempt counts."""
        return {} if self.state is None else {"economy": self.state.to_json()}


WHOLE_ATTEMPT = Economy()


def opened(built: ControlledBattery, policy: Policy, rollout: Rollout, record: Mapping[str, Any], folded: int) -> Economy:
    """The window of the rollout's stage; a stage that the record does not know yet begins at the next ordinal.

    A stage is entered once in an attempt: a rollout that was held and goes on keeps its window, or each resume would be another
    chance for a false claim.

    Args:
        record: the attempt's evidence record.
        folded: ordinals that it has folded.
    """
    if policy.economy == "carry" or rollout.stage == 0:
        return WHOLE_ATTEMPT
    stage, number, kept = policy.stages[rollout.stage].name, rollout.stage + 1, record.get("economy")
    window = Window(built.main, number, built.counts)
    if kept is not None and (kept["stage"], kept["number"]) == (stage, number):
        return Economy(window, WindowState.from_json(kept))
    return Economy(window, window.start(stage, folded), entered=True)
