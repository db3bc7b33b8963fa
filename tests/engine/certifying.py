"""The real loop's own traces through the shipped losslessness battery, request by request until every certificate holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from transformers import PreTrainedModel

from canary.domain.pairs import Arm, DecodeStats, Generation, Pair
from canary.domain.policy import Gates
from canary.domain.traffic import SamplingParams, Stratum
from canary.engine.faults.judging import Inject
from canary.engine.requests import Job, Running
from canary.stats.calibration import calibrate
from canary.stats.part import Context
from tests.engine.exactness import PROMPT, VOCAB, hooks_of
from tests.engine.waves import KINDS, speculating
from tests.stats.experiments import battery_of, stored
from tests.stats.world import CALIBRATING

K = 2
MAX_TOKENS = 40
WAVE, LOOK = 128, 16  # requests that run together, and requests between two looks at the gates
GATES = ("bank_certificate", "pit_certificate", "request_certificate")


@dataclass(frozen=True)
class Certified:
    """How an attempt went.

    Args:
        at: tokens folded when the last certificate held; None where one never did.
        requests: folded by then.
        gates: verdict and reason of every gate that was asked, by name.
        log_e_peak: the largest log of the losslessness e-value.
    """

    at: int | None
    requests: int
    gates: Mapping[str, tuple[str, str]]
    log_e_peak: float


def _jobs(params: Mapping[str, object], first: int, count: int, seed: int) -> list[Job]:
    asked = SamplingParams(MAX_TOKENS, **{"temperature": 1.0} | params)
    return [Job(index, PROMPT, asked, (index, seed)) for index in range(first, first + count)]


def _pair(running: Running, k: int, baseline: tuple[int, ...], calibration_hash: str) -> Pair:
    """One traced answer as a pair; of the baseline only the calibrating requests need more than a token."""
    assert running.error is None
    assert running.record is not None
    tokens, reason, ordinal = tuple(running.token_ids), running.finish_reason or "", running.job.index
    trace = running.record.columns()
    plain = DecodeStats(0, (0,) * len(baseline), (0,) * len(baseline))
    return Pair(
        pair_id=f"{ordinal:032x}",
        route="tiny",
        epoch="e",
        attempt=1,
        ordinal=ordinal,
        stratum=Stratum.SAMPLED,
        first=Arm.BASELINE,
        baseline=Generation(Arm.BASELINE, baseline, "", "length", plain),
        candidate=Generation(Arm.CANDIDATE, tokens, "", reason, running.stats(k), trace=trace),
        increments=b"",
        calibration_hash=calibration_hash,
    )


def certify(
    model: PreTrainedModel,
    drafter: str,
    method: str,
    params: Mapping[str, object],
    tokens: int,
    gates: Gates | None = None,
    seed: int = 11,
    inject: Inject = lambda hooks: hooks,
) -> Certified:
    """Run one attempt until all certificates hold.

    Args:
        tokens: the most that are drawn after the calibration.
        gates: margins and error budget; those of the default policy unless given.
        inject: a fault of the candidate.
    """
    gates, hooks = gates or Gates(), inject(hooks_of(drafter, method))
    context = Context(gates, gates.alpha, KINDS[drafter], K, exact_rows=True, vocab_size=VOCAB, scheme=hooks.scheme)
    loop, plain = speculating(model, drafter, hooks, k=K), speculating(model, "none")
    beside = [tuple(r.token_ids) for r in plain.run(_jobs(params, 0, CALIBRATING, seed + 1))]
    first = sorted(loop.run(_jobs(params, 0, CALIBRATING, seed), traced=True), key=lambda r: r.job.index)
    calibrating = [_pair(running, K, other, "") for running, other in zip(first, beside, strict=True)]
    record = calibrate(calibrating, context)
    loop.want_tv = False

    def attempt() -> Iterator[Pair]:
        drawn, ordinal = 0, CALIBRATING
        while drawn < tokens:
            count = min(WAVE, -(-(tokens - drawn) // MAX_TOKENS))
            done = sorted(loop.run(_jobs(params, ordinal, count, seed), traced=True), key=lambda r: r.job.index)
            yield from (_pair(running, K, (0,), record.hash) for running in done)
            ordinal, drawn = ordinal + len(done), drawn + sum(len(r.token_ids) for r in done)

    return _walk(replace(context, calibration=record), calibrating, attempt())


def _walk(context: Context, calibrating: list[Pair], rest: Iterator[Pair]) -> Certified:
    battery = battery_of(context)
    state = battery.start()
    state = battery.fold(state, stored(battery_of(replace(context, calibration=None)), calibrating))
    folded, found = 0, dict[str, tuple[str, str]]()
    while pairs := list(islice(rest, LOOK)):
        state = battery.fold(state, stored(battery, pairs))
        folded += sum(len(pair.candidate.token_ids) for pair in pairs)
        found = {g.gate: (str(g.verdict), g.reason) for g in battery.assess(state) if g.gate in ("losslessness", *GATES)}
        if all(found[gate][0] == "pass" for gate in GATES):
            return Certified(folded, state.num_pairs, found, state.kill_peak or 0.0)
    return Certified(None, state.num_pairs, found, state.kill_peak or 0.0)
