"""What a route's evidence will need and what it could miss, from its calibrating pairs and its folded sums; reads only.

Expectations at the route's present mix and traffic, by the closed forms of `stats.sensitivity`; it promises nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from canary.domain.errors import NoDataError
from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.pairs import Pair
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.domain.traffic import Stratum
from canary.flow.attempt import calibrated, context, controlled, engine_of, pinned_policy, rollout_of
from canary.flow.economy import opened
from canary.flow.ports import Transaction
from canary.stats import calibration as calibrations
from canary.stats import losslessness, sensitivity
from canary.stats.bank import active_bursts, active_singles, single_ratios
from canary.stats.battery import Battery
from canary.stats.bets import INFORMATIVE, LAMBDAS, column
from canary.stats.bounded import log_budget
from canary.stats.certificates import certified_singles, log_certificate, strength
from canary.stats.part import Calibration, Context, Sums
from canary.stats.sensitivity import Need, Traffic
from canary.stats.state import State

HORIZON = 1000  # requests within which a fault should be killed, unless asked otherwise
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class GateNeed:
    """One gate's outlook.

    Args:
        stratum: the one that is short; "" where every request counts alike.
        requests: further requests of the route; None if unknown.
        days: the same at the route's traffic; None if unknown.
        basis: `measured` from what was folded, or `expected` for an exact candidate, before anything was.
        slowest: what sets the bill, where known.
    """

    gate: str
    verdict: str
    stratum: str
    requests: int | None
    days: float | None
    basis: str
    slowest: str = ""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How weak one fault may be and still be killed within the horizon, with probability about .9.

    Args:
        tv: mean TV(p, a_k) per token: what the fault moves at full strength.
        share: the smallest contamination; None where even full strength may be missed.
        moves: probability mass per token that this share moves; None likewise.
        inside_margin: at full strength it lies inside the margin, so no certificate excludes it.
    """

    alternative: str
    tv: float
    share: float | None
    moves: float | None
    inside_margin: bool


@dataclass(frozen=True, slots=True)
class Power:
    """A route's outlook.

    Args:
        requests_per_day: pairs stored a day so far; None while their times span nothing.
        horizon: requests that `sensitivities` are about.
        untested: strata without a single calibrating or folded pair.
    """

    route: str
    attempt: int
    num_pairs: int
    requests_per_day: float | None
    tokens_per_request: float
    informative_share: float
    margin: float
    alpha: float
    horizon: int
    gates: tuple[GateNeed, ...]
    sensitivities: tuple[Sensitivity, ...]
    untested: tuple[str, ...]


def power(tx: Transaction, route: str, horizon: int = HORIZON) -> Power:
    """The outlook of a route's current attempt.

    Args:
        horizon: requests of the route within which a fault should be killed.

    Raises:
        NotFoundError: there is no such route.
        NoDataError: the attempt has not calibrated yet; says what to do.
    """
    rollout = rollout_of(tx, route)
    seen = _Seen.read(tx, rollout)
    sampled = seen.traffic(Stratum.SAMPLED)
    growth = seen.growth()
    return Power(
        route=route,
        attempt=rollout.attempt,
        num_pairs=seen.state.num_pairs,
        requests_per_day=seen.per_day,
        tokens_per_request=sampled.tokens,
        informative_share=sampled.informative / sampled.tokens if sampled.tokens else 0.0,
        margin=seen.context.gates.margin,
        alpha=seen.context.alpha,
        horizon=horizon,
        gates=_needs(seen, growth),
        sensitivities=_sensitivities(seen, growth, horizon),
        untested=tuple(str(s) for s in Stratum if not seen.share(s)),
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the attempt has so far.

    Args:
        pairs: the calibrating pairs that entered.
        gates: as assessed on the state.
        per_day: pairs stored a day.
    """

    context: Context
    calibration: Calibration
    battery: Battery
    state: State
    gates: Sequence[GateEvidence]
    pairs: Sequence[Pair]
    per_day: float | None

    @classmethod
    def read(cls, tx: Transaction, rollout: Rollout) -> _Seen:
        key = (rollout.route, rollout.epoch, rollout.attempt)
        policy = pinned_policy(tx, rollout)
        record: Any = tx.evidence.get(*key)
        frozen = tx.evidence.get_calibration(*key)
        asked = policy.shadow.calibration_requests
        pairs = tx.pairs.first(*key, asked)
        if record is None or frozen is None or pairs is None:
            raise _nothing_yet(rollout, policy)
        record_of = calibrations.from_json(frozen)
        ctx = calibrated(context(policy, rollout.attempt, engine_of(record["engine"]), None), record_of)
        built = controlled(policy, ctx)
        state = built.load(record)
        entered = [p for p in pairs if p is not None and p.error is None and not p.control]
        first = next(iter(tx.pairs.contiguous(*key, after=0, limit=1)), None)
        since = None if first is None or state.main.newest_pair_at is None else state.main.newest_pair_at - first.stored_at
        per_day = state.folded / since * DAY if since else None
        gates = opened(built, policy, rollout, record, state.folded).judge(built.assess(state))
        return cls(ctx, record_of, built.main, state.main, gates, entered, per_day)

    @property
    def certificates(self) -> Sums:
        return self.battery.sums_of(self.state, "certificates")

    def share(self, stratum: Stratum) -> float:
        """Of the route's requests: folded pairs, or the calibrating ones while nothing is folded."""
        counts: Mapping[Stratum, float] = self.battery.strata(self.state)
        if not any(counts.values()):
            counts = {s: float(sum(p.stratum is s for p in self.pairs)) for s in Stratum}
        return counts[stratum] / total if (total := sum(counts.values())) else 0.0

    def traffic(self, stratum: Stratum) -> Traffic:
        """Means over the calibrating pairs of the stratum."""
        mine = [p for p in self.pairs if p.stratum is stratum and not p.candidate.error and not p.baseline.error]
        if not mine:
            return Traffic(0.0, 0.0, 0.0)
        choices = [float((1 - column(p.candidate.trace, "max_prob") > INFORMATIVE).sum()) for p in mine if p.candidate.trace]
        return Traffic(
            tokens=float(np.mean([len(p.candidate.token_ids) for p in mine])),
            baseline_tokens=float(np.mean([len(p.baseline.token_ids) for p in mine])),
            informative=sum(choices) / len(mine),
        )

    def inside(self) -> list[str]:
        """Alternatives inside the margin at full strength."""
        margin = self.context.gates.margin
        return [k for k in certified_singles(self.context.drafter_kind) if self.calibration.tv_upper[k] < margin]

    def growth(self) -> dict[str, float]:
        """Log growth per token of every bank certificate, over calibrating and folded tokens; what equals p has none.

        Of an exact candidate it is at least 2 (lam* TV_k)^2 (statistics 3.5), whatever a few tokens say.
        """
        sums, margin = self.certificates, self.context.gates.margin
        ratios = [found for p in self.pairs if (found := single_ratios(self.context, p)) is not None]
        grown: dict[str, float] = {}
        for k in certified_singles(self.context.drafter_kind):
            if not self.calibration.tv[k] and not sums[f"seen:{k}"]:
                continue
            lam = strength(self.calibration, k, margin)
            logs = np.concatenate([log_certificate(r[k], lam) for r in ratios]) if ratios else np.zeros(0)
            tokens = len(logs) + sums["tokens"]
            least = 2 * (lam * self.calibration.tv[k]) ** 2
            grown[k] = max((float(logs.sum()) + sums[f"bank:{k}"]) / tokens, least) if tokens else least
        return grown


def _nothing_yet(rollout: Rollout, policy: Policy) -> NoDataError:
    return NoDataError(
        f"attempt {rollout.attempt} has not finished the {policy.shadow.calibration_requests} requests that calibrate it",
        where=f"routes/{rollout.route}",
        remedy=f"Mirror requests to the route and run `canary worker --route {rollout.route}`, then ask again.",
    )


def _needs(seen: _Seen, growth: Mapping[str, float]) -> tuple[GateNeed, ...]:
    """Every gate that has to pass: from its own finding where it has one, else from the closed forms of its strata."""
    expected: dict[str, list[Need]] = {}
    for stratum in Stratum:
        if not seen.share(stratum):
            continue
        traffic = seen.traffic(stratum)
        forms = sensitivity.row_needs(seen.context, stratum, traffic)
        if stratum is Stratum.SAMPLED:
            tested = {k: g for k, g in growth.items() if k not in seen.inside()}
            forms |= sensitivity.sampled_needs(seen.context, traffic, tested)
        for gate, need in forms.items():
            expected.setdefault(gate, []).append(need)
    asked = {g.gate: g for g in seen.gates if g.role is not GateRole.HARNESS}
    return tuple(_need(seen, name, asked.get(name), expected.get(name, [])) for name in dict.fromkeys((*asked, *expected)))


def _need(seen: _Seen, name: str, gate: GateEvidence | None, expected: Sequence[Need]) -> GateNeed:
    verdict = gate.verdict if gate is not None else Verdict.NO_DATA
    if gate is not None and verdict in (Verdict.PASS, Verdict.FAIL):
        requests, days = (0, 0.0) if verdict is Verdict.PASS else (None, None)
        return GateNeed(name, str(verdict), "", requests, days, "measured", gate.reason)
    told = gate.details if gate is not None and gate.n else {}
    measured = told.get("needed_requests")
    if isinstance(measured, int):
        return GateNeed(name, str(verdict), str(told.get("short_stratum") or ""), measured, _days(seen, measured), "measured")
    stuck = next((n for n in expected if n.requests is None), None)
    if stuck is not None:
        return GateNeed(name, str(verdict), str(stuck.stratum), None, None, "expected", stuck.slowest)
    totals = [(math.ceil((n.requests or 0) / seen.share(n.stratum)), n) for n in expected]
    if not totals:
        return GateNeed(name, str(verdict), "", None, None, "expected")
    total, need = max(totals, key=lambda each: each[0])
    return GateNeed(name, str(verdict), str(need.stratum), total, _days(seen, total), "expected", need.slowest)


def _days(seen: _Seen, requests: int) -> float | None:
    return requests / seen.per_day if seen.per_day else None


def _sensitivities(seen: _Seen, growth: Mapping[str, float], horizon: int) -> tuple[Sensitivity, ...]:
    """Of every alternative that has a certificate, weakest evidence first."""
    kind, margin = seen.context.drafter_kind, seen.context.gates.margin
    weight = losslessness.weights(seen.battery.e_values(seen.state), seen.battery.strata(seen.state)).get("bank", 0.0)
    if not weight:
        weight = losslessness.weights(seen.battery.e_values(seen.state), {s: seen.share(s) for s in Stratum}).get("bank", 0.0)
    inside, tokens = seen.inside(), horizon * seen.share(Stratum.SAMPLED) * seen.traffic(Stratum.SAMPLED).tokens
    if not weight or not tokens:
        return ()
    bets = (len(active_singles(kind)) + len(active_bursts(kind))) * len(LAMBDAS)
    goal = log_budget(seen.context.alpha) - math.log(weight / bets)
    found = []
    for k, grown in growth.items():
        tv = seen.calibration.tv[k]
        chi2 = sensitivity.chi_square(grown, strength(seen.calibration, k, margin), tv)
        share = sensitivity.smallest_share(chi2, tokens, goal) if chi2 > 0 else None
        found.append(Sensitivity(k, tv, share, None if share is None else share * tv, k in inside))
    return tuple(sorted(found, key=lambda s: -(math.inf if s.moves is None else s.moves)))
