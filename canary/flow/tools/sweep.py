"""`canary sweep`: from one recorded baseline run, which drafter and which k a route should use, and what that should bring.

It decides nothing about traffic: it recommends a policy, and says of every figure whether it was measured or predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from canary.domain.errors import ModelError, NoDataError
from canary.domain.policy import Drafter, Policy
from canary.domain.traffic import Prompt
from canary.flow.tools.policy_files import dump
from canary.flow.tools.sweep_facts import Baseline, Drafted, Recorded, RunFile, SweepEngine, key_of
from canary.stats import cost
from canary.stats.cost import Costs, Curve, Prediction

MOST = 16
NGRAMS = (3, 2, 4, 1)  # the usual one first: of settings that are equally fast the first is taken
FAR_FROM_MEMORY = 2.5  # a plain step that takes so many times the weights' reading makes speculation look good

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Swept:
    """One drafter.

    Args:
        predictions: by k, one per concurrency.
        best: its k; 0 where it is predicted to gain nothing.
        speedup: at that k, at the worst concurrency.
        refused: why it could not be tried; the rest is empty then.
    """

    drafter: Drafter
    predictions: Mapping[int, tuple[Prediction, ...]] = field(default_factory=dict)
    best: int = 0
    speedup: float = 1.0
    replayed: bool = True
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep found.

    Args:
        own: the policy's drafter as it is.
        curve: the verify curve as measured.
        swept: every drafter, in the order in which they were asked for.
        chosen: index of the recommended one; None where k = 0 is.
        context: cached tokens per row at which the curve was measured.
        skipped: prompts that could not run.
    """

    route: str
    own: Drafter
    described: Mapping[str, str]
    concurrencies: tuple[int, ...]
    answers: int
    tokens: int
    context: int
    curve: Curve
    baseline: Baseline
    swept: tuple[Swept, ...]
    chosen: int | None
    skipped: int = 0

    @property
    def recommended(self) -> Drafter | None:
        """The drafter with its k, None for k = 0."""
        if self.chosen is None:
            return None
        found = self.swept[self.chosen]
        return replace(found.drafter, num_speculative_tokens=found.best)

    @property
    def memory_multiple(self) -> float:
        """How many times longer the plain step takes than reading the weights."""
        return cost.memory_multiple(self.baseline.step_seconds, self.baseline.weight_bytes, self.baseline.bandwidth)

    def of_best(self) -> tuple[Prediction, ...]:
        """The recommended setting's predictions, one per concurrency; empty for k = 0."""
        return () if self.chosen is None else self.swept[self.chosen].predictions[self.swept[self.chosen].best]


def drafters_of(policy: Policy, *more: Drafter) -> list[Drafter]:
    """What is tried: the policy's own drafter, n-grams of every length, and what the caller names."""
    own = policy.subject.drafter
    ngrams = (Drafter("ngram", MOST, max_ngram=n, verification=own.verification) for n in NGRAMS)
    # What is recommended is a drafter and its k; whether k adapts stays as the policy says.
    alike = (replace(d, num_speculative_tokens=MOST, adaptive=own.adaptive) for d in (own, *ngrams, *more))
    return list(dict.fromkeys(alike))


def record(engine: SweepEngine, prompts: Sequence[Prompt], run: RunFile, progress: Progress) -> list[Recorded]:
    """The baseline's answers, each kept in the run's file as it ends; those that are there already are not run again.

    Raises:
        NoDataError: no prompt, or none of them can run.
    """
    known, found = run.load(), []
    for at, prompt in enumerate(prompts):
        progress("baseline", at, len(prompts))
        answer = known.get(key_of(prompt))
        if answer is None:
            answer = engine.record(prompt)
            if answer is None:
                continue
            run.append(key_of(prompt), answer)
        found.append(answer)
    if not any(len(answer.token_ids) > 1 for answer in found):
        raise NoDataError("no prompt gave an answer of two tokens or more", where=run.path.stem, remedy="Give other --prompts.")
    return found


def sweep(
    policy: Policy,
    engine: SweepEngine,
    answers: Sequence[Recorded],
    drafters: Sequence[Drafter],
    concurrencies: Sequence[int],
    progress: Progress,
    skipped: int = 0,
) -> Sweep:
    """Measure the steps, lead every drafter along the recorded text, and predict.

    Args:
        answers: from `record`, on the same engine.
        concurrencies: requests together, rising.
    """
    context = round(float(np.mean([len(a.prompt_ids) + len(a.token_ids) / 2 for a in answers])))
    progress("step times", 0, len(drafters) + 1)
    curve = engine.curve(sorted({1, *concurrencies}), context)
    swept = []
    for at, drafter in enumerate(drafters, start=1):
        progress(label(drafter), at, len(drafters) + 1)
        try:
            drafted = engine.along(drafter, answers, sorted({1, *concurrencies}), drafter.num_speculative_tokens)
        except ModelError as error:
            swept.append(Swept(drafter, refused=str(error)))
            continue
        swept.append(_swept(drafter, drafted, answers, curve, context, concurrencies))
    return Sweep(
        route=policy.route,
        own=policy.subject.drafter,
        described=engine.described,
        concurrencies=tuple(concurrencies),
        answers=len(answers),
        tokens=sum(len(a.token_ids) for a in answers),
        context=context,
        curve=curve,
        baseline=engine.baseline(curve.at(1, 1, context)),
        swept=tuple(swept),
        chosen=_choose(swept),
        skipped=skipped,
    )


def patched(policy: Policy, found: Sweep) -> str:
    """The policy with the recommended drafter as canonical YAML; `canary policy diff` says what it changes.

    Raises:
        NoDataError: k = 0 is recommended, which is no configuration of a candidate.
    """
    chosen = found.recommended
    if chosen is None:
        raise NoDataError(
            "no setting is predicted to gain, so there is nothing to write",
            where=policy.route,
            remedy="Leave the route at its baseline.",
        )
    changed = replace(policy, subject=replace(policy.subject, drafter=chosen))
    return dump(changed)


def label(drafter: Drafter) -> str:
    """A drafter in a few words."""
    named = {
        "ngram": f"ngram {drafter.max_ngram}",
        "draft_model": f"draft_model {drafter.model}",
        "early_exit": f"early_exit {drafter.exit_layer}",
        "heads": f"heads {drafter.heads}",
        "composite": f"composite {drafter.max_ngram}, {drafter.fallback}",
    }
    return named[drafter.name]


def _swept(
    drafter: Drafter, drafted: Drafted, answers: Sequence[Recorded], curve: Curve, context: int, concurrencies: Sequence[int]
) -> Swept:
    drafting = drafted.cost
    costs = Costs(
        verify=curve,
        prefill=[a.prefill_seconds for a in answers],
        context=context,
        draft=(lambda _rows, _k: 0.0) if drafting is None else (lambda rows, k: drafting.at(rows, k)),
        draft_prefill=drafted.prefill,
    )
    most = drafted.tracks[0].survival.shape[1] - 1
    predictions = {k: tuple(cost.predict(drafted.tracks, k, c, costs) for c in concurrencies) for k in range(most + 1)}
    best = cost.best(predictions)
    return Swept(drafter, predictions, best, min(p.speedup for p in predictions[best]), drafted.replayed)


def _choose(swept: Sequence[Swept]) -> int | None:
    """The first drafter within the hysteresis of the fastest, None where all of them are best at k = 0."""
    gains = {i: s.speedup for i, s in enumerate(swept) if s.best > 0}
    if not gains:
        return None
    fastest = max(gains.values())
    return min(i for i, speedup in gains.items() if speedup * (1 + cost.HYSTERESIS) >= fastest)
