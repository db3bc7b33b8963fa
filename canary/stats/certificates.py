"""Certificates of the sampled stratum: e-processes against "differs by at least the margin", one per direction (statistics 3.5).

Every direction has to certify (intersection-union), so nothing is corrected for their number. They are needed to advance and
never remove traffic; a certificate speaks about the directions it names and about no other.
"""

from __future__ import annotations

import math
from functools import cache
from typing import cast

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import DrafterKind
from canary.domain.traffic import Stratum
from canary.stats import certificate_gates as gates
from canary.stats import coverage
from canary.stats.bank import BONUS, active_bursts, active_singles, excess_table, is_active, log_burst, ratio_table
from canary.stats.batch import Batch, Together
from canary.stats.bets import DEGREES, SEEN, Array, log_inverse_bets, sum_log_inverse_bets
from canary.stats.part import Calibration, Context, Sums, Vector
from canary.stats.pit import ORDERS, pit_table
from canary.stats.strata import tested_strata

MAX_STRENGTH = 0.95  # lam* where full strength is about the margin or inside it
BURST_STRENGTH = 0.9  # a wholly corrupted request draws at least this share of its tokens from the alternative
MAX_STAKE = 0.9  # of a PIT certificate: keeps its factor above 1 - .9 * (1 - 2m)


@cache
def certified_singles(kind: DrafterKind) -> tuple[str, ...]:
    """Alternatives with a certificate; the bonus copies are parts of hot and cold and have none of their own."""
    return tuple(k for k in active_singles(kind) if k not in BONUS)


def strength(calibration: Calibration, alternative: str, margin: float) -> float:
    """lam* = margin / TV_k, the contamination by a_k that shifts the margin, at most .95."""
    tv = calibration.tv[alternative]
    return min(margin / tv, MAX_STRENGTH) if tv > 0 else MAX_STRENGTH


@cache
def pit_directions(kind: DrafterKind) -> tuple[tuple[str, int, int], ...]:
    """(order, sign, degree) of every PIT certificate.

    One-hot drafts keep a single direction of the q/p order: towards the drafted token, which stands last in it.
    """
    by_id = tuple(("pit_id", sign, j) for sign in (1, -1) for j in DEGREES)
    if is_active("pit_ratio_all_directions", kind):
        return by_id + tuple(("pit_ratio", sign, j) for sign in (1, -1) for j in DEGREES)
    return (*by_id, ("pit_ratio", 1, 1))


@cache
def _pit_places(kind: DrafterKind) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per direction: place of its order in `ORDERS`, sign, degree - 1."""
    order, sign, degree = zip(*pit_directions(kind), strict=True)
    return np.array([ORDERS.index(o) for o in order]), np.array(sign, dtype=np.float64), np.array(degree) - 1


def pit_stake(margin: float, degree: int) -> float:
    """Stake of a PIT certificate, 2m(2j + 1): the growth-optimal one to first order (statistics 3.5)."""
    return min(2 * margin * (2 * degree + 1), MAX_STAKE)


def log_certificate(log_ratio: Array, lam: float) -> Array:
    """Per-token log of C_k: -log(1 + lam* (a(x)/p(x) - 1)); an e-process for every contamination from lam* on."""
    return log_inverse_bets(log_ratio, lam)


def log_pit_certificate(values: Array, margin: float, degree: int) -> Array:
    """Per-token log of 1 - 2m(2j+1)(f - 2m) for a witness f in [-1, 1], against "the mean of f is at least 2m"."""
    return np.asarray(np.log1p(-pit_stake(margin, degree) * (values - 2 * margin)))


def log_request_certificate(log_likelihood: Array, share: float) -> Array:
    """Per-request log of 1 / (1 - pi + pi * L), against "at least a share pi of requests comes from the alternative"."""
    return -log_burst(log_likelihood, (share,))[..., 0]


class Certificates(Together):
    """Gates `bank_certificate`, `pit_certificate` and `request_certificate` of the sampled stratum."""

    name = "certificates"

    def directions(self, context: Context) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Names of the bank, PIT and request certificates."""
        kind = context.drafter_kind
        bank = tuple(f"bank:{k}" for k in certified_singles(kind))
        pit = tuple(f"{order}:{'+' if sign > 0 else '-'}L{j}" for order, sign, j in pit_directions(kind))
        return bank, pit, tuple(f"request:{k}" for k in active_bursts(kind))

    def names(self, context: Context) -> tuple[str, ...]:
        """Coverage counts; per alternative `seen:k` (tokens on which it differs from the target) and `tv:k` (sum of one-sample
        distances); then the log of every certificate."""
        bank, pit, request = self.directions(context)
        singles = certified_singles(context.drafter_kind)
        counts = tuple(f"{what}:{k}" for what in ("seen", "tv") for k in singles)
        return (*coverage.NAMES, *counts, *bank, *pit, *request)

    def increments_many(self, batch: Batch) -> Vector:
        """Each pair's counts and certificate logs; certificates add nothing while the attempt calibrates."""
        context, counts = batch.context, coverage.increments(batch)
        if context.calibration is None or not batch.sampled:
            return np.concatenate([counts, np.zeros((len(counts), len(self.names(context)) - counts.shape[1]))], axis=1)
        margin, kind, tokens = context.gates.margin, context.drafter_kind, batch.traces.tokens
        singles = certified_singles(kind)
        certified, excess = (table[:, : len(singles)] for table in (ratio_table(batch), excess_table(batch)))  # bonus copies last
        seen = tokens.sum(np.abs(certified) > SEEN)
        tv = tokens.sum(np.maximum(-excess, 0.0))  # `one_sample_distance`
        bank = sum_log_inverse_bets(tokens, certified, excess, [strength(context.calibration, k, margin) for k in singles])
        bursts = [singles.index(k) for k in active_bursts(kind)]
        within = -sum_log_inverse_bets(tokens, certified[:, bursts], excess[:, bursts], [BURST_STRENGTH] * len(bursts))
        request = log_request_certificate(within, context.gates.request_margin)
        found = np.concatenate([seen, tv, bank, self._pit(batch), request], axis=1)
        return np.concatenate([counts, batch.spread(found)], axis=1)

    def _pit(self, batch: Batch) -> Vector:
        """Logs of the PIT certificates, [sampled, directions]."""
        context, table = batch.context, pit_table(batch)
        orders, signs, degrees = _pit_places(context.drafter_kind)
        values = table[:, orders, degrees] * signs  # [tokens, directions]
        if not is_active("pit_ratio_all_directions", context.drafter_kind):
            # Where nothing was drafted no token is preferred, so the witness is 0 there: known before the draw.
            values[:, orders == ORDERS.index("pit_ratio")] *= batch.traces.column("drafted")[:, None]
        margin = context.gates.margin
        stakes = np.array([pit_stake(margin, j + 1) for j in degrees.tolist()])
        return batch.traces.tokens.sum_log(lambda q: 1.0 - stakes * q, values - 2 * margin, -math.log1p(-MAX_STAKE))

    def log_e(self, context: Context, values: Vector) -> dict[str, float]:
        """The log of every certificate, by its name."""
        names = self.names(context)
        first = len(names) - sum(len(group) for group in self.directions(context))
        return {name: cast(float, values[..., at]) for at, name in enumerate(names) if at >= first}

    def assess(self, context: Context, sums: Sums) -> list[GateEvidence]:
        """Three gates; none while sampled requests are below the share that is tested (then the gate `strata` holds)."""
        if Stratum.SAMPLED not in tested_strata(coverage.strata(sums)):
            return []
        bank, pit, request = self.directions(context)
        margin, per_token = context.gates.margin, sums["tokens"] / max(sums["requests"], 1.0)
        inside, identical = self._skipped(context, sums)
        # Growth per request under equality, before anything is observed: worst cases of statistics 3.5.
        least = 2 * margin**2 * per_token
        growth = dict.fromkeys(bank, least)
        growth |= {name: least * (2 * int(name[-1]) + 1) for name in pit}
        growth |= {name: -math.log1p(-context.gates.request_margin) for name in request}
        skipped: dict[str, list[str]] = {"inside_margin": inside, "equal_on_this_traffic": identical}
        left_out = {f"bank:{k}" for k in (*inside, *identical)}
        tested, reach = [d for d in bank if d not in left_out], self._reach(context, sums)
        requests = self._request_directions(list(request), identical)
        return [
            gates.judge(context, sums, gates.BANK, tested, growth, skipped, reach, inside),
            gates.judge(context, sums, gates.PIT, list(pit), growth, inside=inside),
            gates.judge(context, sums, gates.REQUEST, requests, growth, inside=inside),
        ]

    def _reach(self, context: Context, sums: Sums) -> dict[str, gates.Reach]:
        """What the bank's certificates exclude on the tokens that they counted, by alternative; nothing while calibrating."""
        record, margin, tokens = context.calibration, context.gates.margin, max(sums["tokens"], 1.0)
        if record is None:
            return {}
        inside, _ = self._skipped(context, sums)
        return {
            k: gates.Reach(1.0 if k in inside else strength(record, k, margin), record.tv[k], sums[f"tv:{k}"] / tokens)
            for k in certified_singles(context.drafter_kind)
        }

    def _skipped(self, context: Context, sums: Sums) -> tuple[list[str], list[str]]:
        """Alternatives without a certificate: inside the margin at full strength; equal to the target on every token so far."""
        record = context.calibration
        if record is None:
            return [], []
        singles = certified_singles(context.drafter_kind)
        inside = [k for k in singles if record.tv_upper[k] < context.gates.margin]
        identical = [k for k in singles if record.tv[k] == 0 and sums[f"seen:{k}"] == 0 and k not in inside]
        return inside, identical

    def _request_directions(self, request: list[str], identical: list[str]) -> list[str]:
        """An alternative that equals the target on all traffic cannot take over a request."""
        return [name for name in request if name.removeprefix("request:") not in identical]
