"""A rollout driven by anything that may happen to it, with what must hold after every step; Hypothesis chooses what happens.

`decide`, `step` and the orders are looked up in their modules at each call, so that a planted fault is driven too.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from canary.domain import decide as deciding
from canary.domain import moves, orders
from canary.domain import step as stepping
from canary.domain.errors import CanaryError
from canary.domain.evidence import Evidence, Verdict
from canary.domain.policy import Approval, Policy
from canary.domain.rollout import Rollout, State
from canary.flow.tools.audits import replay
from tests.domain.situations import NOW, POLICY, evidence

ASKING = replace(
    POLICY,
    stages=tuple(replace(s, approval=Approval(400.0) if s.weight > 500 else None) for s in POLICY.stages),
    on_no_data="baseline",
)
KEEPING = replace(POLICY, on_drift="keep", inside_margin="hold", limits=replace(POLICY.limits, max_attempts=2, cooldown_factor=4))
WORLDS = {
    "healthy": {},
    "more needed": {"bank_certificate": "inconclusive"},
    "no rows": {"row_gate": "no_data"},
    "lossy": {"losslessness": "fail"},
    "inside": {"losslessness": {"verdict": "fail", "details": {"component_fired": False}}},
    "failing": {"live errors": "fail"},
    "slow": {"live speed": "fail"},
    "slow in shadow": {"speed": "fail"},
    "baseline down": {"baseline": "fail"},
    "harness": {"control": "fail", "losslessness": "fail"},
    "blind": {"row_gate": "error"},
    "gate gone": {"acceptance": None},
}
WAITS = (1.0, 5.0, 30.0, 60.0, 120.0, 450.0, 3000.0)


class RolloutMachine(RuleBasedStateMachine):
    """One route, its evidence, its engines and its people."""

    @initialize(policy=st.sampled_from([POLICY, ASKING, KEEPING]))
    def begin(self, policy: Policy) -> None:
        self.policy, self.now = policy, NOW
        self.row = Rollout("math", "hash", State.SHADOW, 0, "", 1, entered_at=NOW)
        self.events: list[dict[str, object]] = []
        self._tell("policy", {"after": moves.facts_of(self.row), "version": 1})
        self.weight, self.lifted = 0, False

    def _tell(self, kind: str, body: dict[str, object]) -> None:
        self.events.append({"kind": kind, "body": body})

    def _moved(self, stepped: moves.Step) -> None:
        """Take one step, as a transaction would, and check what holds of every single one."""
        before, after = self.row, stepped.rollout
        assert after.version == before.version + (after != before), "the version rises by one"
        assert after.stage in (before.stage, before.stage + 1, 0), "no step skips a stage"
        if after.killed != before.killed:
            assert after.killed or self.lifted, "only a person lifts a kill"
        for kind, body in stepped.audit:
            self._tell(kind, dict(body))
        self.row, self.weight = after, stepped.flag_weight
        replayed = replay(self.events)  # type: ignore[arg-type]
        assert replayed is not None
        assert {k: v for k, v in replayed.items() if k != "version"} == moves.facts_of(after), "the log rebuilds the row"

    def _order(self, act: str, **more: str) -> None:
        try:
            stepped = getattr(orders, act)(self.row, self.policy, self.now, reason="a person said so", **more)
        except CanaryError:
            return
        self.lifted = act == "unkill"
        weight = self.weight
        self._moved(stepped)
        assert self.weight <= weight, "no order puts traffic on the candidate"
        self.lifted = False

    def _look(self, found: Evidence | None, manual: str | None = None) -> None:
        before = self.row
        decision = deciding.decide(before, self.policy, found, self.now, manual_kill=manual)
        assert decision == deciding.decide(before, self.policy, found, self.now, manual_kill=manual), (
            "decisions are deterministic"
        )
        weight = moves.weight_of(before, self.policy, self.now)
        stepped = stepping.step(before, self.policy, decision, self.now)
        assert stepped == stepping.step(before, self.policy, decision, self.now)
        self._moved(stepped)
        if before.killed or manual:
            assert self.row.killed
        if stepped.flag_weight > weight:
            self._advanced(before, found)
        elif self.row.stage > before.stage:
            raise AssertionError("an advance without more traffic")

    def _advanced(self, before: Rollout, found: Evidence | None) -> None:
        """What an advance may rest on; stated here a second time, and not as `decide` does."""
        assert before.state in (State.SHADOW, State.CANARY)
        assert self.row.stage == before.stage + 1
        assert found is not None
        assert found.attempt == before.attempt
        assert found.epoch == before.epoch
        assert all(g.verdict is Verdict.PASS for g in found.gates), "unknown never advances"
        assert found.newest_pair_at is not None
        assert self.now - found.newest_pair_at <= self.policy.limits.fresh_seconds
        assert before.baked_seconds >= self.policy.stages[before.stage].bake_seconds
        assert self.now >= before.cool_until or before.stage > 0
        asked = self.policy.stages[self.row.stage].approval
        assert asked is None or (before.approved_by and self.now < before.approved_at + asked.within_seconds)
        assert (self.row.approved_by, self.row.baked_seconds, self.row.entered_at) == ("", 0.0, self.now)

    @rule(
        wait=st.sampled_from(WAITS), world=st.sampled_from(["healthy"] * 6 + [*WORLDS]), age=st.sampled_from([0, 0, 0, 499, 501])
    )
    def look(self, wait: float, world: str, age: float) -> None:
        self.now += wait
        gates = WORLDS[world]
        self._look(evidence(gates, epoch=self.row.epoch, attempt=self.row.attempt, newest_pair_at=self.now - age,
                            subject=self.row.epoch, engine=self.row.epoch))  # fmt: skip

    @rule(times=st.integers(1, 5))
    def healthy_for_a_while(self, times: int) -> None:
        for _ in range(times):
            self.look(wait=60.0, world="healthy", age=0)

    @rule(wait=st.sampled_from(WAITS), kind=st.sampled_from(["none", "other epoch", "other attempt", "other engine"]))
    def look_at_what_is_no_evidence(self, wait: float, kind: str) -> None:
        self.now += wait
        found = {
            "none": None,
            "other epoch": evidence(epoch="another", attempt=self.row.attempt, newest_pair_at=self.now),
            "other attempt": evidence(epoch=self.row.epoch, attempt=self.row.attempt + 1, newest_pair_at=self.now),
            "other engine": evidence(epoch=self.row.epoch, attempt=self.row.attempt, newest_pair_at=self.now, engine="another"),
        }[kind]
        stage = self.row.stage
        self._look(found)
        assert self.row.stage <= stage, "what is no evidence about the subject promotes nothing"

    @rule(act=st.sampled_from(["pause", "resume", "reject", "abort", "retry"]))
    def order(self, act: str) -> None:
        self._order(act)
        if act == "abort":
            assert self.weight == moves.weight_of(self.row, self.policy, self.now)
            assert self.row.killed or self.row.state in (State.ROLLED_BACK, State.PENDING, State.ARCHIVED)
            assert self.row.killed or self.weight == 0, "an abort leaves no traffic"

    @rule()
    def approve(self) -> None:
        self._order("approve", actor="ada")

    @rule(by_hand=st.booleans())
    def kill(self, by_hand: bool) -> None:
        found = evidence({"losslessness": "fail"}, epoch=self.row.epoch, attempt=self.row.attempt, newest_pair_at=self.now,
                         subject=self.row.epoch, engine=self.row.epoch)  # fmt: skip
        self._look(found, "an incident" if by_hand else None)
        assert not by_hand or self.weight == 0, "a person's kill takes no time"

    @precondition(lambda self: self.row.killed)
    @rule()
    def unkill(self) -> None:
        attempt = self.row.attempt
        self._order("unkill")
        assert (self.row.killed, self.row.attempt, self.row.stage, self.weight) == (False, attempt + 1, 0, 0)

    @rule(epoch=st.sampled_from(["one", "one", "two"]))
    def announce(self, epoch: str) -> None:
        weight = moves.weight_of(self.row, self.policy, self.now)
        self._moved(stepping.new_epoch(self.row, epoch, self.policy, self.now, attempt=self.row.attempt + 1))
        assert self.weight <= weight

    @invariant()
    def a_kill_has_no_weight_once_its_ramp_is_over(self) -> None:
        if hasattr(self, "row") and (self.row.killed or self.row.state is State.ROLLED_BACK):
            end = max(self.now, self.row.ramp_end)
            assert moves.weight_of(self.row, self.policy, end) == 0
            assert self.row.ramp_end - self.row.ramp_start <= self.policy.limits.kill_ramp_seconds

    @invariant()
    def the_weight_is_the_stages(self) -> None:
        if hasattr(self, "row") and not self.row.killed and self.row.state is not State.ROLLED_BACK:
            expected = 0 if self.row.state is State.PENDING else self.policy.stages[self.row.stage].weight
            assert moves.weight_of(self.row, self.policy, self.now) == expected
            assert self.weight == expected
