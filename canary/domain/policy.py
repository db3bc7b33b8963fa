"""One route's policy as plain values: what to test, at which margins, and through which stages traffic may move.

Reading YAML and naming its lines is `flow.tools.policy_files`; here every value is already legal on its own,
and `check` states what must hold between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from canary.domain import budget
from canary.domain.drafter_policy import Drafter as Drafter
from canary.domain.drills import Drills
from canary.domain.errors import PolicyError
from canary.domain.kills import DRILL
from canary.domain.live_policy import LiveGates, Structured, asked_at_full, asks_live_safety, check_stage_live
from canary.domain.match import Match, check_match
from canary.domain.modes import MODES, STRATUM_GATES, GateMode, Mode, StratumMode
from canary.domain.shadow_policy import Shadow as Shadow
from canary.domain.shadow_policy import check_shadow
from canary.domain.stage_policy import Approval as Approval
from canary.domain.stage_policy import Limits as Limits
from canary.domain.stage_policy import NotifyTarget as NotifyTarget
from canary.domain.stage_policy import Stage as Stage
from canary.domain.stage_policy import check_notify, check_stages
from canary.domain.traffic import Stratum


@dataclass(frozen=True, slots=True)
class Subject:
    """The engine configuration that the flag turns on.

    Args:
        engine: `own` (Canary's torch engine) is the only one that Canary itself can run so far.
        target: name or directory of the target model.
        drafter: what proposes tokens, and how many.
        dtype: `float32`, `bfloat16`, or `auto`: single precision where this machine affords it, measured once per model.
        fault: a drill's injected fault, by name of `engine.faults`; part of the epoch.
        device: where the target runs, `cpu`, `cuda` or `cuda:N`; its kind is part of the epoch, its number is not.
        graphs: whether the target's steps are captured once for a few shapes and run again: `off`, `cuda_graphs` or `compile`.
    """

    engine: str
    target: str
    drafter: Drafter
    dtype: str = "auto"
    fault: str | None = None
    device: str = "cpu"
    graphs: str = "off"


@dataclass(frozen=True, slots=True)
class Gates:
    """Margins, thresholds and error budgets, frozen when an attempt starts (statistics 0b, 5).

    Args:
        alpha: error budget of the kill and of every promotion gate, in attempt 1.
        margin: contamination or direction shift per token that a certificate excludes.
        request_margin: share of wholly corrupted requests that is excluded.
        row_margin: mean excess row distance that is excluded (16 bit), or the absolute one (fp32).
        tau_row: row distance that counts as an outlier; excesses are clipped here.
        outlier_rate: rate of outlier rows that is excluded.
        tau_gap: greedy logit gap that counts as a violation.
        gap_rate: rate of gap violations that is excluded.
        gap_floor: rate of gap violations that kills when exceeded (null of the e-process).
        noise_floor_positions: baseline positions needed before noise gates speak.
        min_informative: informative tokens needed in a sampled stratum.
        acceptance_floor: acceptance rate that must be exceeded.
        acceptance_drift_margin: share of its first rate that the acceptance at a position may lose later on.
        speed_ratio: median speed-up that must be exceeded.
        min_speed_tokens: pairs with a shorter arm are left out of the speed gate.
        error_margin: excess of failed candidate arms that kills.
        control_limit: e-value of the baseline against itself (A/A) from which the harness counts as broken.
        speed_concurrency: requests in the engine together at which speed and TTFT are decided; its load band counts.
        ttft_ratio: the candidate's TTFT may be so many times the baseline's at the median, plus the slack.
        ttft_slack_seconds: what is added to that, so that clock noise on short prompts decides nothing.
        ttft_tail_margin: excess share of slow first tokens that is excluded before full.
        ttft_slo_seconds: TTFT from which a first token counts as slow; without it the calibrating baseline's 95th percentile.
        memory_headroom: share of the device's memory that must stay free with the candidate; without it nothing is asked.
        modes: gates that count less or otherwise than they ordinarily do, by name.
        strata: strata whose certificates count less; `match` must leave such a stratum out.
        watch_requests_per_day: mirrored requests a day, at most; the change detector then has one false page in ten years.
    """

    alpha: float = budget.KILL_ALPHA
    margin: float = 0.01
    request_margin: float = 0.01
    row_margin: float = 0.005
    tau_row: float = 0.2
    outlier_rate: float = 1e-3
    tau_gap: float = 0.5
    gap_rate: float = 1e-3
    gap_floor: float = 2e-5
    noise_floor_positions: int = 5000
    min_informative: int = 500
    acceptance_floor: float = 0.5
    speed_ratio: float = 1.0
    min_speed_tokens: int = 8
    error_margin: float = 0.01
    control_limit: float = budget.CONTROL_LIMIT
    speed_concurrency: int = 1
    ttft_ratio: float = 1.10
    ttft_slack_seconds: float = 0.005
    ttft_tail_margin: float = 0.02
    ttft_slo_seconds: float | None = None
    memory_headroom: float | None = None
    modes: tuple[GateMode, ...] = ()
    strata: tuple[StratumMode, ...] = ()
    watch_requests_per_day: float = 10_000.0
    acceptance_drift_margin: float = 0.1

    def alpha_of(self, attempt: int) -> float:
        """Error budget of one attempt: alpha, then alpha * 6 / (pi^2 j^2) from the second on (statistics 0b.4)."""
        return budget.alpha_of(self.alpha, attempt)

    def mode_of(self, gate: str) -> Mode:
        """How much a gate counts; every gate outside `MODES` is required, unless it is a left-out stratum's certificate."""
        of = STRATUM_GATES.get(gate)
        chosen = next((m.mode for m in self.modes if m.gate == gate), None)
        chosen = chosen or next((s.mode for s in self.strata if s.stratum == of), None)
        return chosen or MODES.get(gate, Mode.REQUIRED)


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything that decides about one route; see `canary/docs/policy.md`.

    Args:
        quick_look: says that margins are wide and live gates waived; shown wherever the verdict is.
        economy: `restart` gathers speed and acceptance anew in each stage, `carry` keeps the shadow's.
        on_drift: at full, what an unplanned change of epoch does: `baseline` or `keep`.
        on_no_data: at full, what `no_data_seconds` without a fresh pair do: `keep` (and page) or `baseline`.
        inside_margin: strict null rejected but every certificate holds: `kill` or `hold`.
        live_gates: margins of the gates that live traffic feeds.
        structured: what every answer must be, for a route whose clients parse it.
        drills: which injected faults must have been caught lately before the route leaves the shadow.
        match: the requests that the flag takes to the candidate and the mirror keeps.
        notify: webhooks that are told of the route's events.
        on_lost: at full, what a client does whose control plane is lost: `keep` or `baseline`; a canary goes to the baseline.
        max_stale_seconds: how old a client's snapshot may be before the control plane counts as lost.
        content_hash: SHA-256 of the file's canonical form; pinned by a rollout at its start.
    """

    route: str
    subject: Subject
    stages: tuple[Stage, ...]
    shadow: Shadow = field(default_factory=Shadow)
    gates: Gates = field(default_factory=Gates)
    limits: Limits = field(default_factory=Limits)
    quick_look: bool = False
    economy: str = "restart"
    on_drift: str = "baseline"
    on_no_data: str = "keep"
    inside_margin: str = "kill"
    live_gates: LiveGates = field(default_factory=LiveGates)
    structured: Structured | None = None
    drills: Drills = field(default_factory=Drills)
    content_hash: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    match: Match = field(default_factory=Match)
    notify: tuple[NotifyTarget, ...] = ()
    on_lost: str = "keep"
    max_stale_seconds: float = 60.0

    @property
    def error_shares(self) -> int:
        """Tests that share the errors e-value's budget: errors and structured answers, in shadow, live, and at full."""
        compared = (1 if self.structured is None else 2) * (2 if asks_live_safety([s.live for s in self.stages]) else 1)
        return compared + asked_at_full(self.stages[-1].live)

    def check(self) -> None:
        """Refuse a policy whose parts contradict each other.

        Raises:
            PolicyError: names the field.
        """
        if self.route == DRILL:
            raise PolicyError("is the name of the kill drills' flag", where="route", remedy="Choose another name.")
        check_stages(self.stages)
        for stage in self.stages:
            check_stage_live(
                stage.name,
                stage.weight,
                stage.live,
                structured=self.structured is not None,
                memory=self.gates.memory_headroom is not None,
                ttft_ratio=self.gates.ttft_ratio,
            )
        self._check_numbers()
        check_match(self.match)
        check_notify(self.notify)
        for each in self.gates.strata:
            if not self.match.strata or each.stratum in self.match.strata:
                raise PolicyError(
                    f"{each.stratum} requests would get a candidate whose certificates nobody waits for",
                    where=f"gates.strata.{each.stratum}",
                    remedy="Leave the stratum out under `match: strata:`, or drop its mode.",
                )

    @property
    def left_out(self) -> frozenset[Stratum]:
        """Strata that the flag never takes: their pairs neither promote nor block, nor kill."""
        return frozenset(s for s in Stratum if self.match.strata and s.value not in self.match.strata)

    def mirrors(self, endpoint: str, temperature: float, stream: bool) -> bool:
        """Whether the mirror keeps such a request: the flag takes it, or its stratum is watched though left out."""
        watched = tuple(each.stratum for each in self.gates.strata)
        wide = replace(self.match, strata=(*self.match.strata, *watched)) if self.match.strata else self.match
        return wide.takes(endpoint, temperature, stream)

    def _check_numbers(self) -> None:
        """Margins and limits that only make sense together."""
        gates, limits = self.gates, self.limits
        if gates.gap_floor >= gates.gap_rate:
            raise PolicyError(
                f"gap_floor {gates.gap_floor} is not below gap_rate {gates.gap_rate}",
                where="gates.gap_floor",
                remedy="The rate that kills must be below the rate that promotion excludes.",
            )
        if gates.row_margin >= gates.tau_row:
            raise PolicyError(
                f"row_margin {gates.row_margin} is not below tau_row {gates.tau_row}",
                where="gates.row_margin",
                remedy="Row distances are clipped at tau_row, so a margin from there on excludes nothing.",
            )
        check_shadow(self.shadow, speed_concurrency=gates.speed_concurrency, max_requests=limits.max_requests)
