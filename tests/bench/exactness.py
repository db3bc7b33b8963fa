"""The faults of the catalogue's groups A and B against exactly enumerated probabilities: `python -m tests.bench.exactness`.

Prints the table of `canary/docs/evidence.md` (or JSON, `--json`). A fault that a chi-square of this size cannot see is named with
what sees it; nothing here is a speed figure.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from zlib import crc32

import torch
from transformers import PreTrainedModel

from canary.domain.catalogue import CATALOGUE
from canary.domain.errors import IdentityError
from canary.engine.faults import FAULTS
from canary.engine.hooks import METHODS
from tests.engine.exactness import PARAMETERS, chi_square, small_model

SAMPLES = 20_000
LEVEL = 1e-3
DRAFTER = "draft_model"

# What the requests ask for, so that the fault can show at all; `plain` where it is not named.
ASKED: Mapping[str, str] = {
    "temperature_ignored": "temperature",
    "filters_ignored": "top_p",
    "bonus_parameters_ignored": "top_p",
    "min_p_ignored": "min_p",
    "bias_on_bonus_only": "bias",
    "penalties_ignored": "repetition",
    "penalties_frozen": "presence_and_frequency",
    "rejected_drafts_counted": "presence_and_frequency",
    "min_tokens_short": "min_tokens",
}
# Who sees a fault that this many answers do not show: median tokens to the kill, of the tables of `canary/docs/evidence.md`.
RARE: Mapping[str, str] = {
    "off_by_one_rows": "battery: losslessness, 1,008 tokens",
    "unguarded_residual": "nobody: only rounding triggers it",
    "requests_from_draft": "battery: losslessness, 200 of 200 attempts",
    "requests_from_draft_rare": "battery: losslessness, 5,184 tokens",
    "rejected_drafts_counted": "row outliers; four tokens are too short for it",
    "requests_shifted": "battery: losslessness, 4,032 tokens",
}
# Faults of groups A and B -> "" where the chi-square has to see them.
CITED: Mapping[str, str] = {e.name: RARE.get(e.name, "") for e in CATALOGUE.values() if e.group in "AB" and not e.harmless}


@dataclass(frozen=True)
class Row:
    """One fault.

    Args:
        p: of the chi-square by token; 0 also where an answer was impossible or an identity did not hold.
        p_block: the same under block verification.
        asked: what the requests asked for, of `PARAMETERS`.
        cited: who sees it where the chi-square does not.
    """

    fault: str
    catalogue_id: str
    asked: str
    p: float
    p_block: float
    cited: str


def fault_p(model: PreTrainedModel, fault: str, method: str, samples: int = SAMPLES) -> float:
    """p-value of the answers of a faulty loop; 0 where the loop's own identities refuse them."""
    hooks = FAULTS[fault].inject(METHODS[method])
    asked = PARAMETERS[ASKED.get(fault, "plain")]
    try:
        return chi_square(model, DRAFTER, asked, samples, hooks, crc32(f"{fault}, {method}".encode()))[0]
    except IdentityError:
        return 0.0


def fault_row(model: PreTrainedModel, fault: str, samples: int = SAMPLES) -> Row:
    """One line of the table."""
    p, p_block = (fault_p(model, fault, method, samples) for method in METHODS)
    return Row(fault, CATALOGUE[fault].catalogue_id, ASKED.get(fault, "plain"), p, p_block, CITED[fault])


def said(p: float) -> str:
    """A p-value as the table has it."""
    return "< 1e-99" if p < 1e-99 else f"{p:.0e}" if p < LEVEL else f"{p:.2g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per fault, Markdown or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--only", nargs="*", choices=list(CITED), default=list(CITED))
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model, rows = small_model(), []
    if not chosen.json:
        print("| fault | requests | by token | by block | where not |\n|---|---|---|---|---|")
    for fault in chosen.only:
        row = fault_row(model, fault, chosen.samples)
        rows.append(asdict(row))
        if not chosen.json:
            said_p, said_block = said(row.p), said(row.p_block)
            print(f"| `{fault}` | {row.asked} | {said_p} | {said_block} | {row.cited} |", flush=True)
    if chosen.json:
        print(json.dumps({"samples": chosen.samples, "drafter": DRAFTER, "rows": rows}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
