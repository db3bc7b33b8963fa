"""The gate of CI: shadow, assess and decide over a file of prompts, in memory, on the same code as production."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from canary.domain.decide import Decision, decide
from canary.domain.errors import ExitCode, UsageError
from canary.domain.evidence import Evidence
from canary.domain.policy import Policy
from canary.domain.traffic import Prompt
from canary.flow.ports import Observer, ShadowEngine, Store
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump
from canary.flow.tools.verdicts import exit_code
from canary.flow.walk.assess import assess
from canary.flow.walk.mirror import accept
from canary.flow.walk.shadow import announce, shadow_once

Progress = Callable[[int, int, Evidence | None], None]


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gate found, and the exit code that says so."""

    code: ExitCode
    decision: Decision
    evidence: Evidence | None
    pairs: int


def run_gate(
    policy: Policy,
    prompts: Sequence[Prompt],
    engine: ShadowEngine,
    store: Store,
    *,
    clock: Callable[[], float],
    observer: Observer,
    progress: Progress,
) -> GateResult:
    """Walk the prompts until the decision is final or they are used up.

    Args:
        store: an empty store; nothing outside it is touched.
        progress: called after every batch with pairs done, pairs in all and the evidence so far.

    Raises:
        UsageError: there is no prompt.
    """
    if not prompts:
        raise UsageError("the prompt file holds no prompt", where="--prompts")
    at_once = replace(policy.shadow, schedule=None)
    unbaked = replace(policy, shadow=at_once, stages=tuple(replace(s, bake_seconds=0.0) for s in policy.stages))
    apply_policy(store, unbaked, dump(unbaked), clock(), actor="gate")
    rollout = announce(store, policy.route, engine.info, clock())
    accept(store, prompts, clock())
    evidence, done = None, 0
    decision = decide(rollout, unbaked, None, clock())
    while ran := shadow_once(store, policy.route, engine, worker="gate", clock=clock, observer=observer):
        done += ran
        evidence = assess(store, policy.route, clock())
        decision = decide(rollout, unbaked, evidence, clock())
        progress(done, len(prompts), evidence)
        if decision.kind in ("kill", "advance"):
            break
    gates = [asdict(g) for g in evidence.gates] if evidence else []
    code = exit_code(asdict(decision), gates, evidence.num_pairs if evidence else 0)
    return GateResult(code, decision, evidence, done)
