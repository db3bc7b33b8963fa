"""Which way each field of a policy is looser: one table, so that nobody has to judge a change by eye.

Looser means that traffic moves on less evidence, faster, or stays longer with something wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from canary.domain.modes import Mode


class Direction(StrEnum):
    """What a change of a field means; the first three are outcomes, the others say how to find one."""

    LOOSER = "looser"
    STRICTER = "stricter"
    NEUTRAL = "neutral"
    HIGHER_LOOSER = "higher_looser"
    LOWER_LOOSER = "lower_looser"
    ANY_LOOSER = "any_looser"  # either way gives something away
    MORE_LOOSER = "more_looser"  # of a set: whatever is added
    FEWER_LOOSER = "fewer_looser"  # of a set: whatever is taken away
    ORDERED = "ordered"  # of a few words: the later in `order`, the looser


@dataclass(frozen=True, slots=True)
class Rule:
    """How to tell the direction of one field's change.

    Args:
        direction: how.
        order: for `ordered`: values from strict to loose.
        evidence: evidence gathered under the old value says nothing about the new one.
        none: for numbers and sets: what absence is, `looser` or `stricter` than any value.
    """

    direction: Direction
    order: tuple[object, ...] = ()
    evidence: bool = False
    none: Direction = Direction.LOOSER

    def between(self, old: object, new: object) -> Direction:
        """The direction of a change from one value to another; what cannot be told counts as looser."""
        if old == new or self.direction is Direction.NEUTRAL:
            return Direction.NEUTRAL
        if self.direction is Direction.ANY_LOOSER:
            return Direction.LOOSER
        if self.direction is Direction.ORDERED:
            return _by(self.order.index(new) > self.order.index(old)) if {old, new} <= set(self.order) else Direction.LOOSER
        if old is None or new is None:
            return self.none if new is None else _opposite(self.none)
        if self.direction in (Direction.MORE_LOOSER, Direction.FEWER_LOOSER):
            return self._of_sets(old, new)
        if not isinstance(old, int | float) or not isinstance(new, int | float):
            return Direction.LOOSER
        return _by((new > old) == (self.direction is Direction.HIGHER_LOOSER))

    def _of_sets(self, old: object, new: object) -> Direction:
        """An empty list of what is taken stands for everything; of what is asked, for nothing."""
        if not isinstance(old, Sequence) or not isinstance(new, Sequence):
            return Direction.LOOSER
        more = self.direction is Direction.MORE_LOOSER
        if more and (not old or not new):
            return _by(not new)
        added, gone = set(new) - set(old), set(old) - set(new)
        return _by(bool(added if more else gone)) if added or gone else Direction.NEUTRAL


def _by(looser: bool) -> Direction:
    return Direction.LOOSER if looser else Direction.STRICTER


def _opposite(direction: Direction) -> Direction:
    return Direction.STRICTER if direction is Direction.LOOSER else Direction.LOOSER


# For a structured answer, another schema is neither more nor less: any change but asking for one at all counts as looser.
UP, DOWN = Rule(Direction.HIGHER_LOOSER), Rule(Direction.LOWER_LOOSER)
UP_EVIDENCE, DOWN_EVIDENCE = Rule(Direction.HIGHER_LOOSER, evidence=True), Rule(Direction.LOWER_LOOSER, evidence=True)
ANY_EVIDENCE = Rule(Direction.ANY_LOOSER, evidence=True)
NEUTRAL, NEUTRAL_EVIDENCE = Rule(Direction.NEUTRAL), Rule(Direction.NEUTRAL, evidence=True)
TAKES = Rule(Direction.MORE_LOOSER, evidence=True)


def _ordered(*words: object) -> Rule:
    return Rule(Direction.ORDERED, words)


MODE = _ordered(Mode.REQUIRED.value, Mode.BEFORE_FULL.value, Mode.WARN.value, Mode.OBSERVE.value)

# A subject is another thing to prove, not a looser proof: its evidence starts from nothing, in the shadow.
DIRECTIONS: Mapping[str, Rule] = {
    "route": ANY_EVIDENCE,
    "quick_look": NEUTRAL,
    **dict.fromkeys(("subject.engine", "subject.target", "subject.dtype", "subject.fault"), NEUTRAL_EVIDENCE),
    **dict.fromkeys(("subject.device", "subject.graphs"), NEUTRAL_EVIDENCE),
    **dict.fromkeys((f"subject.drafter.{n}" for n in ("name", "num_speculative_tokens", "model", "max_ngram")), NEUTRAL_EVIDENCE),
    **dict.fromkeys((f"subject.drafter.{n}" for n in ("exit_layer", "heads", "fallback", "device")), NEUTRAL_EVIDENCE),
    **dict.fromkeys((f"subject.drafter.{n}" for n in ("verification", "adaptive")), NEUTRAL_EVIDENCE),
    "match.endpoints": TAKES,
    "match.strata": TAKES,
    "match.stream": ANY_EVIDENCE,
    "match.max_temperature": UP_EVIDENCE,
    **dict.fromkeys((f"shadow.{n}" for n in ("batch_size", "max_tokens", "timing_concurrency")), NEUTRAL_EVIDENCE),
    **dict.fromkeys((f"shadow.{n}" for n in ("calibration_requests", "control_batch_size")), NEUTRAL_EVIDENCE),
    **dict.fromkeys((f"shadow.{n}" for n in ("mirror_rate", "requests_per_day", "lease_seconds", "max_retries")), NEUTRAL),
    **dict.fromkeys((f"shadow.schedule{n}" for n in ("", ".cron", ".timezone", ".max_requests", ".max_minutes")), NEUTRAL),
    "shadow.control_rate": DOWN_EVIDENCE,
    # A smaller alpha asks more of a promotion and less quickly kills.
    "gates.alpha": ANY_EVIDENCE,
    **dict.fromkeys(
        (
            f"gates.{n}"
            for n in (
                "margin", "request_margin", "row_margin", "tau_row", "outlier_rate", "tau_gap", "gap_rate", "gap_floor",
                "error_margin", "ttft_ratio", "ttft_slack_seconds", "ttft_tail_margin", "acceptance_drift_margin",
                "watch_requests_per_day",
            )
        ),
        UP_EVIDENCE,
    ),
    **dict.fromkeys(
        (f"gates.{n}" for n in ("noise_floor_positions", "min_informative", "acceptance_floor", "speed_ratio")), DOWN_EVIDENCE
    ),
    "gates.min_speed_tokens": ANY_EVIDENCE,
    "gates.speed_concurrency": ANY_EVIDENCE,
    "gates.control_limit": ANY_EVIDENCE,
    "gates.ttft_slo_seconds": UP_EVIDENCE,
    "gates.memory_headroom": DOWN_EVIDENCE,
    "gates.modes.*": MODE,
    "gates.strata.*": MODE,
    "stages": Rule(Direction.FEWER_LOOSER),
    "stages.*.weight": UP,
    "stages.*.bake_seconds": DOWN,
    "stages.*.live": Rule(Direction.FEWER_LOOSER, evidence=True),
    "stages.*.live_waived": NEUTRAL,
    "stages.*.approval": _ordered(True, False),
    "stages.*.approval_within": UP,
    "stages.*.approval_by_author": _ordered(False, True),
    **dict.fromkeys(
        (
            f"limits.{n}"
            for n in (
                "max_hold_seconds", "no_data_seconds", "fresh_seconds", "max_errors", "max_requests", "kill_ramp_seconds",
                "bake_gap_seconds", "max_attempts",
            )
        ),
        UP,
    ),
    **dict.fromkeys((f"limits.{n}" for n in ("cooldown_seconds", "cooldown_factor", "max_cooldown_seconds")), DOWN),
    "economy": _ordered("restart", "carry"),
    "on_drift": _ordered("baseline", "keep"),
    "on_no_data": _ordered("baseline", "keep"),
    "inside_margin": _ordered("kill", "hold"),
    "on_lost": _ordered("baseline", "keep"),
    "max_stale_seconds": UP,
    **dict.fromkeys(("live_gates.min_requests", "live_gates.speed_ratio"), DOWN_EVIDENCE),
    **dict.fromkeys(("live_gates.success_margin", "live_gates.thumbs_margin"), UP_EVIDENCE),
    "structured": DOWN_EVIDENCE,
    **dict.fromkeys((f"structured.{n}" for n in ("kind", "schema", "schema_file")), DOWN_EVIDENCE),
    "drills.required": Rule(Direction.FEWER_LOOSER),
    "drills.max_age_seconds": UP,
    "notify": NEUTRAL,
    "labels.*": NEUTRAL,
}  # fmt: skip
