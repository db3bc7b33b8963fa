"""What a policy says about live traffic and about structured answers: margins, and what must hold between them and the stages.

Every value is already legal on its own; whether a gate passes is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from canary.domain.errors import PolicyError

# Gates that can be fed by live traffic and so be named under a stage's `live` (DESIGN section 5).
LIVE_GATES = (
    "acceptance", "acceptance_drift", "speed", "ttft", "errors", "structured_validity", "task_success", "thumbs", "memory",
)  # fmt: skip
LIVE_SAFETY = ("errors", "structured_validity")
ALONE = ("acceptance", "acceptance_drift", "memory")  # measured on the candidate alone; the others need traffic on both variants
MAX_LIVE_RATIO = 8.0  # live times are clipped at a quarter and four times the baseline's median
STRUCTURED_KINDS = ("json", "tools", "from_request")


@dataclass(frozen=True, slots=True)
class LiveGates:
    """Margins of the gates on live traffic; acceptance, TTFT, errors and memory use the numbers under `gates`.

    Args:
        min_requests: requests of each variant that a live gate needs in a stage before it may pass.
        speed_ratio: live speed-up that must be exceeded; requests are not paired, so little above 1 can be proven.
        success_margin: loss of task success that is excluded.
        thumbs_margin: loss in the share of thumbs up that is excluded.
    """

    min_requests: int = 50
    speed_ratio: float = 1.0
    success_margin: float = 0.02
    thumbs_margin: float = 0.05


@dataclass(frozen=True, slots=True)
class Structured:
    """What every answer of a structured route must be.

    Args:
        kind: `json` (the whole answer is one JSON value), `tools` (the answer calls tools) or `from_request` (each request says
            it, by `response_format`, `tools` and `tool_choice`; one that asks for text alone is not judged).
        schema: `json`: JSON Schema of the value; `tools`: the tools as in a request. As JSON text; "" takes the request's own,
            and where that has none, asks for the form alone.
        schema_file: a file that holds it, beside the policy's; read when the policy is applied, and pinned with it.
    """

    kind: str
    schema: str = ""
    schema_file: str | None = None


def asks_live_safety(stages: Sequence[Sequence[str]]) -> bool:
    """Whether any stage names a live gate that may kill; then the kill budget is shared with it."""
    return any(name in LIVE_SAFETY for live in stages for name in live)


def asked_at_full(live: Sequence[str]) -> int:
    """Safety gates that the last stage names: each is a test more, against the rate that the baseline had before."""
    return sum(name in LIVE_SAFETY for name in live)


def check_stage_live(stage: str, weight: int, live: Sequence[str], *, structured: bool, memory: bool, ttft_ratio: float) -> None:
    """Refuse live gates that could never have data, or that nothing is known about.

    Args:
        weight: of the stage, in basis points.
        structured, memory: whether the policy says what a valid answer is, and how much memory must stay free.
        ttft_ratio: what the TTFT is compared with.

    Raises:
        PolicyError: names the stage.
    """
    where = f"stages.{stage}.live"
    compared = [name for name in live if name not in (*ALONE, *LIVE_SAFETY)]
    if live and weight == 0:
        raise PolicyError(
            f"{live[0]} is asked for in a stage without live traffic",
            where=where,
            remedy="Name live gates in the canary stages.",
        )
    if weight == 10_000 and compared:
        raise PolicyError(
            f"{compared[0]} compares the variants, and at full no traffic is left on the baseline",
            where=where,
            remedy=f"Name {', '.join((*LIVE_SAFETY, *ALONE))} there, or nothing: the shadow's own gates go on.",
        )
    if "structured_validity" in live and not structured:
        raise PolicyError(
            "structured_validity is asked for, but the policy does not say what a valid answer is",
            where=where,
            remedy="Add a `structured:` section.",
        )
    if "ttft" in live and ttft_ratio > MAX_LIVE_RATIO:
        raise PolicyError(
            f"ttft_ratio {ttft_ratio:g} is more than live requests can show",
            where=where,
            remedy=f"Live times are clipped; write a ttft_ratio of at most {MAX_LIVE_RATIO:g}, or leave ttft out.",
        )
    if "memory" in live and not memory:
        raise PolicyError(
            "memory is asked for, but the policy does not say how much must stay free",
            where=where,
            remedy="Add `gates: {memory_headroom: 0.1}`.",
        )
