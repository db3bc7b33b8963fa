"""Planted faults in what decides, steps and buckets, each with the test that must notice it.

A fault is a replacement in a module's source, compiled in memory; the modules that build on it, and the test itself, are loaded
anew on top of it. Nothing on disk changes.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

# In the order in which they build on each other.
CHAIN = ("bucket", "flag", "facts", "truth_table", "decide", "moves", "step", "orders")
HELPERS = ("tests.domain.situations", "tests.domain.test_step", "tests.domain.test_truth_table", "tests.domain.test_orders")


@dataclass(frozen=True)
class Mutation:
    """One planted fault.

    Args:
        name: what goes wrong, in words.
        module: of `canary.domain`.
        old, new: the replacement; `old` stands there exactly once.
        test: `FILE.FUNCTION` under `tests/domain`.
        args: the test's parameters.
    """

    name: str
    module: str
    old: str
    new: str
    test: str
    args: tuple[Any, ...] = ()


def mutated(mutation: Mutation) -> str:
    """The module's source with the fault in it."""
    source = Path(str(importlib.import_module(f"canary.domain.{mutation.module}").__file__)).read_text(encoding="utf-8")
    assert source.count(mutation.old) == 1, f"{mutation.name}: {mutation.old!r} stands {source.count(mutation.old)} times"
    return source.replace(mutation.old, mutation.new)


@contextmanager
def planted(mutation: Mutation | None) -> Iterator[Callable[[str], Any]]:
    """Everything loaded anew with the fault (or without one); gives a function that finds a test by its name."""
    names = [f"canary.domain.{n}" for n in CHAIN] + list(HELPERS)
    kept = {n: sys.modules.get(n) for n in [*names, "tests.domain.test_flag"]}
    try:
        for name in names[: len(CHAIN)]:
            source = mutated(mutation) if mutation and name.endswith(f".{mutation.module}") else None
            _load(name, source)
        for name in HELPERS:
            _load(name, None)
        _load("tests.domain.test_flag", None)

        def find(test: str) -> Any:
            file, function = test.split(".")
            return getattr(sys.modules[f"tests.domain.{file}"], function)

        yield find
    finally:
        for name, module in kept.items():
            _put(name, module)


def _load(name: str, source: str | None) -> None:
    """Execute a module's source anew under its own name; a stored bytecode is never asked."""
    spec = importlib.util.find_spec(name) if name not in sys.modules else sys.modules[name].__spec__
    assert spec is not None
    assert spec.origin is not None
    module = importlib.util.module_from_spec(spec)
    text = Path(spec.origin).read_text(encoding="utf-8") if source is None else source
    _put(name, module)
    exec(compile(text, spec.origin, "exec"), module.__dict__)


def _put(name: str, module: ModuleType | None) -> None:
    package, _, leaf = name.rpartition(".")
    if module is None:
        sys.modules.pop(name, None)
        return
    sys.modules[name] = module
    setattr(sys.modules[package], leaf, module)


CELL, ORDERS, STEP = "test_truth_table.test_every_cell", "test_orders", "test_step"
MUTATIONS = (
    Mutation(
        "inconclusive counts as passing",
        "facts",
        "return measured and not self.missing and not self.stale",
        "return bool(self.gates) and not self.stale and all(m.verdict is Verdict.INCONCLUSIVE for m in self.missing)",
        CELL,
        ("not_yet", "canary-5"),
    ),
    Mutation(
        "an absent gate is no gap",
        "facts",
        '    lacking += [Missing(name, Verdict.NO_DATA, "no_data") for name in absent]\n',
        "",
        "test_truth_table.test_an_absent_gate_is_missing_data",
        ("speed",),
    ),
    Mutation(
        "stale evidence is fresh",
        "facts",
        "stale = age is None or age > policy.limits.fresh_seconds",
        "stale = age is None",
        CELL,
        ("stale", "canary-5"),
    ),
    Mutation(
        "evidence of another attempt counts",
        "facts",
        "(evidence.epoch, evidence.attempt) != (rollout.epoch, rollout.attempt)",
        "evidence.epoch != rollout.epoch",
        "test_truth_table.test_evidence_of_another_attempt_is_none",
        ({"attempt": 2},),
    ),
    Mutation(
        "evidence of another epoch counts",
        "facts",
        "(evidence.epoch, evidence.attempt) != (rollout.epoch, rollout.attempt)",
        "evidence.attempt != rollout.attempt",
        "test_truth_table.test_evidence_of_another_attempt_is_none",
        ({"epoch": "old"},),
    ),
    Mutation(
        "another engine's proof counts",
        "facts",
        'return replace(gate, verdict=Verdict.INCONCLUSIVE, reason="not_the_subject"',
        'return replace(gate, reason="not_the_subject"',
        "test_truth_table.test_another_engines_proof_is_none_and_its_economy_only_blocks",
    ),
    Mutation(
        "nothing bakes",
        "facts",
        "max(0.0, self.stage.bake_seconds - self.rollout.baked_seconds)",
        "0.0",
        CELL,
        ("baking", "canary-5"),
    ),
    Mutation(
        "the cool-down is forgotten",
        "facts",
        "max(0.0, self.rollout.cool_until - self.now) if",
        "0.0 if",
        CELL,
        ("cooling_down", "shadow"),
    ),
    Mutation(
        "nobody is asked",
        "facts",
        "return self.approval is None or approved_until(self.rollout, self.approval) > self.now",
        "return True",
        CELL,
        ("awaiting_approval", "canary-5"),
    ),
    Mutation(
        "an approval is good for ever",
        "facts",
        "return self.approval is None or approved_until(self.rollout, self.approval) > self.now",
        "return self.approval is None or bool(self.rollout.approved_by)",
        f"{ORDERS}.test_a3_13_an_approval_given_early_is_not_good_for_ever",
    ),
    Mutation(
        "silence is consent",
        "truth_table",
        'Row(9, "approval_expired", _denied, HOLD_PAGE, HOLD_PAGE, STAY)',
        'Row(9, "approval_expired", _denied, ADVANCE, ADVANCE, STAY)',
        f"{ORDERS}.test_a3_13_nobody_answers_and_the_stage_is_denied",
    ),
    Mutation(
        "the error limit is off by one",
        "truth_table",
        "return f.errors >= f.policy.limits.max_errors",
        "return f.errors > f.policy.limits.max_errors",
        f"{STEP}.test_errors_are_counted_in_a_row",
    ),
    Mutation(
        "a broken harness suppresses live kills",
        "truth_table",
        "return broken and not _live_errors(f)",
        "return broken",
        "test_truth_table.test_the_first_matching_row_decides",
        ("harness_broken", "live_errors"),
    ),
    Mutation(
        "a shadow economy failure rolls back",
        "truth_table",
        'Row(5, "not_worth_it", _economy_failed, STAY, HOLD, STAY)',
        'Row(5, "not_worth_it", _economy_failed, STAY, ROLL_BACK, STAY)',
        CELL,
        ("not_worth_it", "canary-5"),
    ),
    Mutation(
        "economy kills",
        "truth_table",
        "_economy_failed_live, STAY, ROLL_BACK, ROLL_BACK)",
        "_economy_failed_live, STAY, KILL, KILL)",
        CELL,
        ("not_worth_it_live", "canary-5"),
    ),
    Mutation(
        "no data keeps a canary",
        "truth_table",
        "lambda f: f.no_data_too_long, STAY, ROLL_BACK, STAY_PAGE",
        "lambda f: f.no_data_too_long, STAY, STAY, STAY_PAGE",
        CELL,
        ("no_data_too_long", "canary-5"),
    ),
    Mutation(
        "held rollouts advance",
        "truth_table",
        "if state is State.HELD and cell.kind not in",
        "if False and cell.kind not in",
        CELL,
        ("all_pass", "held at canary-5"),
    ),
    Mutation(
        "held rollouts are not killed",
        "truth_table",
        "if state is State.HELD and cell.kind not in (Kind.KILL, Kind.ROLL_BACK):",
        "if state is State.HELD:",
        CELL,
        ("safety_failed", "held at canary-5"),
    ),
    Mutation(
        "the last row wins",
        "decide",
        "next(r for r in ROWS if r.when(facts))",
        "[r for r in ROWS if r.when(facts)][-1]",
        "test_truth_table.test_the_first_matching_row_decides",
        ("manual_kill", "killed"),
    ),
    Mutation(
        "unhealthy time bakes",
        "decide",
        "healthy=row.number >= 8 and not facts.missing_data and not facts.could_not_measure",
        "healthy=True",
        f"{STEP}.test_the_bake_counts_healthy_assessed_time_only",
        (None, 10, 0.0),
    ),
    Mutation(
        "a promotion skips a stage",
        "step",
        "rollout.stage + 1, now), reason=why)",
        "rollout.stage + 2, now), reason=why)",
        f"{STEP}.test_the_walk_from_shadow_to_full",
    ),
    Mutation(
        "a killed route takes decisions",
        "step",
        "    elif rollout.killed:\n        raise KilledError("
        '"a killed rollout takes no decision but a kill", where=f"rollouts/{rollout.route}")\n',
        "",
        f"{STEP}.test_a_killed_rollout_takes_no_other_decision",
    ),
    Mutation(
        "a whole gap bakes",
        "step",
        "min(max(0.0, now - rollout.assessed_at), policy.limits.bake_gap_seconds)",
        "max(0.0, now - rollout.assessed_at)",
        f"{STEP}.test_the_bake_counts_healthy_assessed_time_only",
        ("EVIDENCE", 3600, 60.0),
    ),
    Mutation(
        "a clock that goes back bakes again",
        "step",
        "max(now, rollout.assessed_at)\n",
        "now\n",
        f"{STEP}.test_two_control_loops_with_different_clocks_bake_no_second_twice",
    ),
    Mutation(
        "no data clears the errors",
        "step",
        "measured = decision.row not in (1, 7)",
        "measured = True",
        f"{STEP}.test_errors_are_counted_in_a_row",
    ),
    Mutation(
        "a manual kill waits for the ramp",
        "step",
        'decision.reason in ("manual_kill", "live_errors")',
        'decision.reason in ("live_errors",)',
        f"{STEP}.test_manual_and_live_error_kills_are_immediate_even_during_a_ramp",
    ),
    Mutation(
        "drift keeps a full route against its policy",
        "step",
        ' or policy.on_drift == "baseline":',
        ":",
        f"{STEP}.test_a_new_epoch",
        ("full", "baseline", "ROLLED_BACK", (10_000, 5000)),
    ),
    Mutation(
        "the question never ages",
        "step",
        "asked_at=now if waits else rollout.asked_at",
        "asked_at=now",
        f"{ORDERS}.test_a3_2_an_approval_moves_exactly_one_stage",
    ),
    Mutation(
        "an approval opens two stages",
        "moves",
        '        approved_at=0.0,\n        approved_by="",\n    )\n\n\ndef roll_back',
        "    )\n\n\ndef roll_back",
        f"{ORDERS}.test_a3_2_an_approval_moves_exactly_one_stage",
    ),
    Mutation(
        "the weight stays after a rollback",
        "moves",
        "        if now >= rollout.ramp_end:\n            return 0\n",
        "        if now >= rollout.ramp_end:\n            return policy.stages[rollout.stage].weight\n",
        f"{STEP}.test_a_rollback_takes_all_traffic_off",
    ),
    Mutation(
        "every kill ramps",
        "moves",
        "if ramp and weight > RAMP_ABOVE and seconds > 0:",
        "if seconds > 0:",
        f"{STEP}.test_only_full_ramps",
        ("canary-5", [0, 0]),
    ),
    Mutation(
        "the cool-down does not grow",
        "moves",
        "policy.limits.cooldown_of(rollbacks)",
        "policy.limits.cooldown_of(1)",
        f"{ORDERS}.test_a3_18_the_cool_down_grows_with_every_rollback_and_attempts_are_used_up",
    ),
    Mutation(
        "the flag is killed while it ramps",
        "moves",
        "killed=new.killed and weight == 0",
        "killed=new.killed",
        f"{STEP}.test_an_evidence_kill_above_half_comes_down_in_a_straight_line",
    ),
    Mutation(
        "an agreed promotion outlives a kill",
        "moves",
        '    rollout = replace(rollout, asked_at=0.0, approved_at=0.0, approved_by="")\n',
        "",
        f"{ORDERS}.test_a3_11_a5_6_a_kill_beats_an_approved_promotion",
    ),
    Mutation(
        "a retry ignores the cool-down",
        "orders",
        "if rollout.state is State.ROLLED_BACK and left > 0:",
        "if False:",
        f"{STEP}.test_retry_waits_for_the_cool_down",
    ),
    Mutation(
        "an abort clamps to a ramp",
        "orders",
        "roll_back(rollout, policy, now, why, ramp=False)",
        "roll_back(rollout, policy, now, why, ramp=True)",
        f"{ORDERS}.test_a3_11_a5_6_an_abort_beats_an_approved_promotion_and_has_no_ramp",
    ),
    Mutation(
        "an unkill keeps its stage",
        "orders",
        "new = replace(enter(rollout, policy, 0, now), state=state, attempt",
        "new = replace(enter(rollout, policy, rollout.stage, now), attempt",
        f"{STEP}.test_unkill_leads_to_shadow_and_a_new_attempt",
        ("full",),
    ),
    Mutation(
        "the salt is not hashed",
        "bucket",
        'f"{salt}{unit}".encode()',
        "unit.encode()",
        "test_flag.test_a_bucket_is_the_hash_of_salt_and_unit_scaled_down",
    ),
    Mutation(
        "buckets by remainder",
        "bucket",
        "* BUCKETS >> 32",
        "% BUCKETS",
        "test_flag.test_a_bucket_is_the_hash_of_salt_and_unit_scaled_down",
    ),
    Mutation(
        "the tail is not hashed",
        "bucket",
        "if size & 3:",
        "if False:",
        "test_flag.test_murmur3_published_vectors",
        (b"hello", 0, 0x248BFA47),
    ),
    Mutation(
        "the weight is an inclusive bound",
        "flag",
        "* BUCKETS >> 32 < weight else",
        "* BUCKETS >> 32 <= weight else",
        "test_flag.test_the_weight_is_an_exclusive_bound",
    ),
)
