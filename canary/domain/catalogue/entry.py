"""One entry of the fault catalogue: what a bug of a real engine looks like, and where it can show at all.

It describes; injecting is the engine's (`canary.engine.faults`), and nothing here may decide about a route.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from canary.domain.pairs import DrafterKind
from canary.domain.traffic import Prompt, Stratum

BOTH = frozenset(DrafterKind)
DENSE = frozenset({DrafterKind.DENSE})
SAMPLED = frozenset({Stratum.SAMPLED})
ALL = frozenset(Stratum)

ROWS = ("losslessness", "row_gate", "outliers", "outlier_requests")  # gates that see rows which are not the reference's
LATE = 48  # answer tokens after which a late fault begins


class Need(StrEnum):
    """What the traffic must have for a fault to show, besides its stratum."""

    TEMPERATURE = "temperature"  # sampled requests at another temperature than 1
    FILTERS = "filters"  # sampled requests with top-k, top-p, min-p or typical-p
    SHAPED = "shaped"  # sampled requests with either
    BATCH = "batch"  # at least two requests decoded together
    LONG = "long"  # answers of more than `LATE` tokens
    STRUCTURED = "structured"  # a policy that says what a valid answer is
    PENALTIES = "penalties"  # requests with a repetition, presence or frequency penalty
    BIASED = "biased"  # requests with a logit bias or bad words
    MIN_P = "min_p"  # sampled requests with min-p
    MIN_TOKENS = "min_tokens"  # requests with a minimum length
    LOGPROBS = "logprobs"  # requests that ask for log-probabilities
    ENDS = "ends"  # answers that end by EOS or a stop string; known only once they ran


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a set of requests offers.

    Args:
        strata: of the requests.
        has: needs that are met, `ENDS` always among them.
    """

    strata: frozenset[Stratum]
    has: frozenset[Need]

    @classmethod
    def of(cls, prompts: Sequence[Prompt], *, batch_size: int, max_tokens: int, structured: bool = False) -> Traffic:
        """What these prompts offer when `batch_size` of them run together and answers end at `max_tokens`.

        Args:
            structured: whether the policy says what a valid answer is.
        """
        sampled = [p.params for p in prompts if p.params.stratum is Stratum.SAMPLED]
        tempered = any(p.temperature != 1 for p in sampled)
        filtered = any(p.filtered for p in sampled)
        every = [p.params for p in prompts]
        longest = max((min(p.params.max_tokens, max_tokens) for p in prompts), default=0)
        met = {
            Need.TEMPERATURE: tempered,
            Need.FILTERS: filtered,
            Need.SHAPED: tempered or filtered,
            Need.BATCH: min(batch_size, len(prompts)) > 1,
            Need.LONG: longest > LATE,
            Need.STRUCTURED: structured,
            Need.PENALTIES: any(p.penalised for p in every),
            Need.BIASED: any(p.logit_bias or p.bad_words for p in every),
            Need.MIN_P: any(p.min_p > 0 for p in sampled),
            Need.MIN_TOKENS: any(p.min_tokens for p in every),
            Need.LOGPROBS: any(p.logprobs is not None for p in every),
            Need.ENDS: True,
        }
        return cls(frozenset(p.params.stratum for p in prompts), frozenset(n for n, is_met in met.items() if is_met))


@dataclass(frozen=True, slots=True)
class FaultEntry:
    """One injectable fault, or a harmless control that must not be called one.

    Args:
        name: what drills, epochs and policies call it.
        catalogue_id: group letter (A output, B parameters, C structure, D ends, E log-probabilities, F random numbers, G cache, H
            ids, I counts, J acceptance, K speed, L numerics) and its number there; a small letter tells variants apart.
        summary: what goes wrong, in one sentence.
        report: a public report of it.
        sign: what it looks like in shadow data.
        detector: who should see it, in words.
        seen_by: gates of which one should fail; empty for a harmless control and for a blind spot that is admitted.
        kinds: drafter kinds that it can show with.
        strata: strata that it can show in.
        needs: what else the traffic must have.
        harmless: it changes no output distribution and no count; calling it a fault is a false alarm.
        blind: why no gate sees it, "" where one should.
        least_tokens: num_speculative_tokens that it needs.
    """

    name: str
    catalogue_id: str
    summary: str
    report: str
    sign: str
    detector: str
    seen_by: tuple[str, ...] = ("losslessness",)
    kinds: frozenset[DrafterKind] = BOTH
    strata: frozenset[Stratum] = SAMPLED
    needs: frozenset[Need] = frozenset()
    harmless: bool = False
    blind: str = ""
    least_tokens: int = 1

    @property
    def group(self) -> str:
        """The catalogue's group, one capital letter."""
        return self.catalogue_id[0]

    @property
    def economic(self) -> bool:
        """The output is right; only acceptance or speed suffers, so a drill has to ask the economy gates."""
        return not self.harmless and bool(self.seen_by) and set(self.seen_by) <= {"acceptance", "speed"}

    @property
    def timed(self) -> bool:
        """Only a timing can show it."""
        return "speed" in self.seen_by

    def cannot_show(self, kind: DrafterKind, num_speculative_tokens: int, traffic: Traffic) -> str:
        """Why the fault would change nothing here; "" if it can show."""
        if kind not in self.kinds:
            return f"it needs a drafter of kind {', '.join(sorted(self.kinds))}, this one is {kind}"
        if num_speculative_tokens < self.least_tokens:
            return f"it needs num_speculative_tokens of at least {self.least_tokens}"
        if not self.strata & traffic.strata:
            return f"it needs {', '.join(sorted(self.strata))} requests"
        lacking = self.needs - traffic.has
        return f"the requests lack what it needs: {', '.join(sorted(lacking))}" if lacking else ""
