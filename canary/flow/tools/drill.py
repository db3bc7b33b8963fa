"""The drill: the candidate with one injected fault after another, on a route's own requests, in memory, through the same walk.

It measures what a pass of this route is worth: which faults are caught, by which gate and how soon. It never touches the route's
own rollout, evidence or flag; only `remember` writes, and only to the audit log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from canary.domain.catalogue import CATALOGUE, FaultEntry, Need, Traffic
from canary.domain.drills import CLEAN, Drills, FaultResult, Outcome, exit_code, power
from canary.domain.errors import UsageError
from canary.domain.evidence import Evidence, GateEvidence, GateRole, Verdict
from canary.domain.policy import Policy
from canary.domain.traffic import Prompt
from canary.flow.attempt import pinned_policy
from canary.flow.drills import AUDIT_KIND
from canary.flow.notify import tell
from canary.flow.ports import EngineInfo, Observer, ShadowEngine, Store
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.drill_tokens import Spent, spent
from canary.flow.tools.policy_files import content_hash, dump
from canary.flow.walk.assess import assess
from canary.flow.walk.mirror import accept
from canary.flow.walk.shadow import announce, shadow_once

COMPLETENESS = "completeness"  # pairs set aside: the trace contradicts itself
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Drill:
    """What every run of one drill has in common.

    Args:
        policy: the route's own, without a fault.
        prompts: the requests that each fault gets, at most.
        open_engine: the engine of a policy, fault included.
        new_store: an empty store in memory.
        progress: called after every batch with the fault's name, requests done and requests in all.
    """

    policy: Policy
    prompts: Sequence[Prompt]
    open_engine: Callable[[Policy], ShadowEngine]
    new_store: Callable[[], Store]
    clock: Callable[[], float]
    observer: Observer
    progress: Progress

    def __post_init__(self) -> None:
        if not self.prompts:
            raise UsageError("there is no request to drill with", remedy="Mirror requests to the route, or give --prompts.")
        if self.policy.subject.fault is not None:
            raise UsageError(
                f"the policy's own subject has the fault {self.policy.subject.fault}",
                where="subject.fault",
                remedy="Drill the policy of the clean candidate.",
            )

    @property
    def traffic(self) -> Traffic:
        """What the requests offer."""
        shadow = self.policy.shadow
        structured = self.policy.structured is not None
        return Traffic.of(self.prompts, batch_size=shadow.batch_size, max_tokens=shadow.max_tokens, structured=structured)


def run_drill(drill: Drill, entries: Sequence[FaultEntry], clean: EngineInfo) -> Iterator[FaultResult]:
    """Run one fault after the other and yield each as it ends.

    Where acceptance or speed is the only sign of a fault, or several are asked for, the clean candidate runs first: a gate that
    fails without a fault catches none.

    Args:
        entries: of the catalogue.
        clean: what the engine without a fault says about itself.
    """
    failing: frozenset[str] = frozenset()
    economic = [e for e in entries if e.economic]
    if len(entries) > 1 or economic:
        asked = frozenset(economic[0].seen_by) if len(entries) == 1 else frozenset[str]()
        result, failing = _clean(drill, asked, timed=any(e.timed for e in entries))
        yield result
    for entry in entries:
        if entry.blind:
            yield FaultResult(entry.name, Outcome.BLIND, sentence=f"No gate sees it: {entry.blind}.")
        elif why := entry.cannot_show(clean.drafter_kind, clean.num_speculative_tokens, drill.traffic):
            yield FaultResult(entry.name, Outcome.CANNOT_SHOW, sentence=f"It cannot show here: {why}.")
        elif entry.economic and set(entry.seen_by) <= failing:
            why = f"{', '.join(entry.seen_by)} fails without it"
            yield FaultResult(entry.name, Outcome.CANNOT_SHOW, sentence=f"It cannot show here: {why}.")
        else:
            yield _run(drill, entry)


def wanted(names: Sequence[str]) -> list[FaultEntry]:
    """The catalogue's entries of these names, all where none is given.

    Raises:
        UsageError: a name is unknown.
    """
    unknown = [name for name in names if name not in CATALOGUE]
    if unknown:
        raise UsageError(f"there is no fault named {unknown[0]!r}", where="--fault", remedy="See `canary drill --list`.")
    return [CATALOGUE[name] for name in names] if names else list(CATALOGUE.values())


def as_body(results: Sequence[FaultResult], policy: Policy, epoch: str, *, complete: bool) -> dict[str, object]:
    """A drill as plain JSON values.

    Args:
        epoch: of the clean subject.
        complete: False where somebody stopped it.
    """
    return {
        "policy": policy.content_hash,
        "epoch": epoch,
        "complete": complete,
        "code": int(exit_code(results)),
        "power": power(results),
        "faults": [{**asdict(r), "outcome": r.outcome.value, "seconds": round(r.seconds, 3)} for r in results],
    }


def remember(store: Store, route: str, body: dict[str, object], actor: str, now: float) -> None:
    """Write a drill to the route's audit log, where the gate `drill` finds it."""
    with store.transaction() as tx:
        tx.audit.append(route, AUDIT_KIND, actor, body, now)
        if (rollout := tx.rollouts.get(route)) is not None:
            tell(tx, pinned_policy(tx, rollout), AUDIT_KIND, body, now)
        tx.commit()


def _walked(policy: Policy, fault: str | None) -> Policy:
    """The policy that a run walks under: a drill is timed only where it names no fault, and needs no A/A arm."""
    shadow = replace(policy.shadow, control_rate=0.0, schedule=None)
    changed = replace(policy, shadow=shadow, subject=replace(policy.subject, fault=fault), drills=Drills())
    return replace(changed, content_hash=content_hash(changed))


def _clean(drill: Drill, asked: frozenset[str], *, timed: bool) -> tuple[FaultResult, frozenset[str]]:
    """Run the candidate without a fault; its result, and the gates that fail.

    Args:
        asked: it ends once these gates are decided; empty: it uses all requests, as every harmless control does.
    """
    start = drill.clock()
    engine = drill.open_engine(_walked(drill.policy, None))
    store, evidence = drill.new_store(), None
    for evidence in _walk(drill, engine, store, CLEAN, None if timed else CLEAN):
        if _failing(evidence, (GateRole.SAFETY,)) or (asked and all(_decided(evidence, name) for name in asked)):
            break
    killed = _failing(evidence, (GateRole.SAFETY,)) if evidence else None
    used = spent(store, drill.policy.route, None)
    fails = frozenset(g.gate for g in evidence.gates if g.verdict is Verdict.FAIL) if evidence else frozenset()
    return _result(CLEAN, Outcome.FALSE_ALARM if killed else Outcome.PASSED, killed, used, drill.clock() - start), fails


def _run(drill: Drill, entry: FaultEntry) -> FaultResult:
    engine = drill.open_engine(_walked(drill.policy, entry.name))
    start, store, outcome, gate, evidence = drill.clock(), drill.new_store(), None, None, None
    for evidence in _walk(drill, engine, store, entry.name, None if entry.timed else entry.name):
        outcome, gate = judged(entry, evidence)
        if outcome is not None:
            break
    seconds = drill.clock() - start
    used = spent(store, drill.policy.route, gate.gate if gate and outcome is Outcome.CAUGHT else None)
    if outcome is not None:
        return _result(entry.name, outcome, gate, used, seconds)
    if entry.harmless:
        return _result(entry.name, Outcome.PASSED, None, used, seconds)
    if Need.ENDS in entry.needs and not used.ended:
        return replace(
            _result(entry.name, Outcome.CANNOT_SHOW, None, used, seconds),
            sentence="It cannot show here: no answer ended by itself.",
        )
    return _result(entry.name, Outcome.UNDECIDED, None, used, seconds)


def _walk(drill: Drill, engine: ShadowEngine, store: Store, name: str, fault: str | None) -> Iterator[Evidence]:
    """Shadow and assess, batch by batch, in an empty store.

    Args:
        fault: what the walk's policy calls the fault; under a policy without one the walk is timed.
    """
    policy, route = _walked(drill.policy, fault), drill.policy.route
    apply_policy(store, policy, dump(policy), drill.clock(), actor="drill")
    announce(store, route, engine.info, drill.clock())
    accept(store, drill.prompts, drill.clock())
    done = 0
    while ran := shadow_once(store, route, engine, worker="drill", clock=drill.clock, observer=drill.observer):
        done += ran
        evidence = assess(store, route, drill.clock())
        drill.progress(name, done, len(drill.prompts))
        if evidence is not None:
            yield evidence


def judged(entry: FaultEntry, evidence: Evidence) -> tuple[Outcome | None, GateEvidence | None]:
    """What the evidence says about a fault so far; None while it says nothing."""
    proof = (GateRole.SAFETY,) if entry.harmless else (GateRole.SAFETY, GateRole.EQUIVALENCE)
    gate = _failing(evidence, proof)
    if gate is None and not entry.harmless:
        named = (*entry.seen_by, COMPLETENESS) if entry.economic else (COMPLETENESS,)
        gate = next((g for g in evidence.gates if g.gate in named and g.verdict is Verdict.FAIL), None)
    if gate is not None:
        return (Outcome.FALSE_ALARM if entry.harmless else Outcome.CAUGHT), gate
    if entry.economic:
        passed = all(_decided(evidence, name) for name in entry.seen_by)
        return (Outcome.TOLERATED if passed else None), None
    proving = [g for g in evidence.gates if g.role in (GateRole.SAFETY, GateRole.EQUIVALENCE)]
    certified = bool(proving) and all(g.verdict is Verdict.PASS for g in proving)
    return (Outcome.PASSED if entry.harmless else Outcome.MISSED) if certified else None, None


def _failing(evidence: Evidence, roles: Sequence[GateRole]) -> GateEvidence | None:
    """The failing gate of these roles that says most: the first role's first."""
    found = [g for role in roles for g in evidence.gates if g.role is role and g.verdict is Verdict.FAIL]
    return found[0] if found else None


def _decided(evidence: Evidence, gate: str) -> bool:
    found = evidence.gate(gate)
    return found is not None and found.verdict in (Verdict.PASS, Verdict.FAIL)


def _result(name: str, outcome: Outcome, gate: GateEvidence | None, used: Spent, seconds: float) -> FaultResult:
    words = {
        Outcome.MISSED: "Every gate passes with the fault in.",
        Outcome.UNDECIDED: f"Neither caught nor certified in {used.requests} requests.",
        Outcome.PASSED: f"Nothing called it a fault in {used.requests} requests.",
        Outcome.TOLERATED: "The output is right and the economy stays within the policy.",
    }
    return FaultResult(
        name,
        outcome,
        gate.gate if gate else "",
        gate.reason if gate else "",
        gate.sentence if gate else words.get(outcome, ""),
        used.requests,
        used.tokens,
        seconds,
    )
