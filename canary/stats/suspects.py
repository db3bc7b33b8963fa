"""Names for what a losslessness test saw: stable code, words, and a public bug that looks like it.

A suspect is a diagnosis for people; it never decides whether a route is killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from canary.stats.bets import LAMBDAS, Array

RESIDUAL = "residual"
# What a fault in judging drafts or in recovering from one looks like to the bank.
DRAFT_FAMILY = frozenset({"draft", "draft_burst", "residual", "over_rejection", "typical"})
MIN_IMPOSSIBLE = 3
GOOD_PART = 0.4  # of the leader's log wealth; simulated wrong residuals had at least .5


@dataclass(frozen=True, slots=True)
class Suspect:
    """One fault as a person reads of it.

    Args:
        code: stable reason code.
        words: what the tokens look like; completes "Losslessness is refuted: ...".
        resembles: public bug with the same sign, "" if none is known.
    """

    code: str
    words: str
    resembles: str = ""


SUSPECTS: dict[str, Suspect] = {
    "draft": Suspect(
        "draft_leak", "tokens look drawn from the drafter, as if drafts were accepted unjudged", "vllm-project/vllm-ascend 13766"
    ),
    "residual": Suspect(
        "wrong_residual",
        "the rejected position looks re-sampled from the target instead of the residual",
        "a classic of textbook implementations",
    ),
    "over_rejection": Suspect(
        "over_rejection", "drafts that should have been accepted look rejected", "ml-explore/mlx-swift-lm 459"
    ),
    "typical": Suspect(
        "typical_acceptance", "drafts look accepted whenever the target finds them likely enough", "vllm-project/vllm 5131"
    ),
    "shared_noise": Suspect(
        "shared_noise", "the draft and the recovered token look drawn with the same noise", "vllm-project/vllm 47386, 54282"
    ),
    "cold": Suspect("too_cold", "tokens look drawn at too low a temperature", "huggingface/transformers 32867"),
    "hot": Suspect("too_hot", "tokens look drawn at too high a temperature", "vllm-project/vllm 9834"),
    "argmax": Suspect("argmax_leak", "the likeliest token is emitted too often", "sgl-project/sglang 31214"),
    "unfiltered": Suspect(
        "sampling_ignored", "temperature or filters look ignored at some positions", "vllm-project/vllm 9834, 10198"
    ),
    "shift": Suspect("off_by_one", "tokens look drawn from the row of the previous position", "huggingface/transformers 28166"),
    "unigram": Suspect("context_lost", "tokens look drawn from the route's word frequencies, as if the context were lost"),
    "bonus_hot": Suspect("bonus_temperature", "the bonus token looks drawn at too high a temperature"),
    "bonus_cold": Suspect("bonus_temperature", "the bonus token looks drawn at too low a temperature"),
    "draft_burst": Suspect("draft_requests", "whole requests look drawn from the drafter"),
    "unigram_burst": Suspect("context_lost_requests", "whole requests look drawn without their context"),
    "shift_burst": Suspect("off_by_one_requests", "whole requests look drawn one position late"),
    "pit_id": Suspect(
        "reused_randomness",
        "tokens do not fall evenly over the target's distribution, as with reused random numbers",
        "vllm-project/vllm 10863",
    ),
    "pit_ratio": Suspect(
        "draft_ordered_shift", "tokens lean along the drafter's preference in a way that no known fault explains"
    ),
    "greedy_gap": Suspect("greedy_mismatch", "greedy tokens are not the target's likeliest"),
    "acc": Suspect(
        "acceptance_rate_off",
        "drafts are not accepted as often as the rule min(1, p/q) says",
        "vllm-project/vllm 5131",
    ),
    "acc_block": Suspect(
        "acceptance_rate_off",
        "rounds are not accepted as far as block verification accepts their drafts",
        "vllm-project/vllm 5131",
    ),
    "acc_over": Suspect(
        "accepted_against_rule",
        "drafts are accepted that the rule rejects at their recorded uniform, as when uniforms come out 0",
        "vllm-project/vllm-ascend 13766, 13730",
    ),
    "acc_under": Suspect(
        "rejected_against_rule",
        "drafts are rejected that the rule accepts at their recorded uniform, as when only the likeliest token is taken",
        "sgl-project/sglang 31214; ml-explore/mlx-swift-lm 459",
    ),
    "acc_uniform": Suspect(
        "acceptance_randomness",
        "the uniforms that drafts are judged with are stuck, repeated, or the draft's own",
        "vllm-project/vllm-ascend 13766",
    ),
    "draft_pit": Suspect(
        "draft_row_mismatch",
        "drafted tokens are not drawn from the row that the drafter reports, as with another temperature or a greedy draft",
        "huggingface/transformers 32867, 40976",
    ),
    "res": Suspect(
        "residual_tilted",
        "recovered tokens lean within the residual, as with noise shared with the draft or a greedy choice",
        "vllm-project/vllm 47386, 54282",
    ),
    "res_pit": Suspect(
        "recovery_randomness",
        "recovered tokens do not fall evenly over the residual, as when the uniform that rejected the draft is used again",
    ),
    "resv": Suspect(
        "wrong_residual",
        "recovered tokens are ones that the residual excludes, as when a rejected position is re-sampled from the target",
        "a classic of textbook implementations",
    ),
    "bonus": Suspect(
        "wrong_bonus",
        "bonus tokens are not drawn from the target's row, as with another temperature, another position or the draft's row",
        "huggingface/transformers 28166; vllm-project/vllm 40831",
    ),
    "xreq": Suspect(
        "seed_reused",
        "requests repeat the random numbers of the one before",
        "vllm-project/vllm 10863, 6038",
    ),
    "row_outliers": Suspect("row_outliers", "the candidate's rows are far from the reference model's, as with a stale cache"),
}


@dataclass(frozen=True, slots=True)
class Lead:
    """How strongly one alternative explains what was seen: its largest log wealth, and the strength that won it."""

    name: str
    log_wealth: float
    strength: float | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the bank says about the cause.

    Args:
        leads: alternatives by log wealth, largest first.
        recovered: recovered tokens seen.
        impossible: of those, tokens that no residual can give (statistics 3.4, RESV).
    """

    leads: tuple[Lead, ...] = ()
    recovered: int = 0
    impossible: int = 0

    @property
    def name(self) -> str:
        """The leading alternative, unless impossible recovered tokens point at the residual.

        A wrong residual moves tokens towards the draft, as a little draft or typical acceptance does, so that those may lead by a
        few nats; but a recovered token that the residual excludes has probability 0 in an engine whose residual is right. Where
        there are such tokens and the residual explains a good part of what the leader explains, it is named.
        """
        lead = self.leads[0]
        residual = next((each for each in self.leads if each.name == RESIDUAL), None)
        if residual is None or self.impossible < MIN_IMPOSSIBLE or residual.log_wealth <= 0:
            return lead.name
        return RESIDUAL if residual.log_wealth >= GOOD_PART * lead.log_wealth else lead.name


def diagnose(entries: Mapping[str, Array], recovered: float, impossible: float) -> Diagnosis:
    """Order the bank's alternatives; ties keep the bank's order.

    Args:
        entries: name -> log wealths over `LAMBDAS`, or over lam and pi of whole-request bets.
        recovered, impossible: see `Diagnosis`.
    """
    found = []
    for name, logs in entries.items():
        best = int(logs.argmax())
        found.append(Lead(name, float(logs[best]), None if name.endswith("_burst") else LAMBDAS[best]))
    return Diagnosis(tuple(sorted(found, key=lambda lead: -lead.log_wealth)), int(recovered), int(impossible))
