"""Reads and writes the recorded attempt; it computes nothing from a text or a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from canary.domain.pairs import DrafterKind
from canary.domain.policy import Gates
from canary.stats import calibration
from canary.stats.battery import Battery, pack, unpack
from canary.stats.part import Context
from tests.stats.world import Item

PATH = Path(__file__).parent / "history.npz"


def write(context: Context, items: Sequence[Item]) -> None:
    """Record the items and the evidence that they give now."""
    assert context.calibration is not None
    battery = Battery(context)
    head = {
        "gates": asdict(context.gates),
        "alpha": context.alpha,
        "drafter_kind": context.drafter_kind.value,
        "num_speculative_tokens": context.num_speculative_tokens,
        "exact_rows": context.exact_rows,
        "vocab_size": context.vocab_size,
        "calibration": calibration.to_json(context.calibration),
        "items": [[item.ordinal, item.increments is not None, item.calibration_hash, item.stored_at] for item in items],
        "state": battery.fold(battery.start(), items).to_json(),
    }
    table = np.stack([unpack(item.increments) for item in items if item.increments is not None])
    np.savez_compressed(PATH, head=np.frombuffer(json.dumps(head).encode(), dtype=np.uint8), increments=table)


def read() -> tuple[Context, list[Item], dict[str, Any]]:
    """The attempt's context, its items, and the evidence as JSON."""
    with np.load(PATH) as found:
        head, rows = json.loads(found["head"].tobytes()), iter(found["increments"])
    context = Context(
        gates=Gates(**{name: tuple(value) if isinstance(value, list) else value for name, value in head["gates"].items()}),
        alpha=head["alpha"],
        drafter_kind=DrafterKind(head["drafter_kind"]),
        num_speculative_tokens=head["num_speculative_tokens"],
        exact_rows=head["exact_rows"],
        vocab_size=head["vocab_size"],
        calibration=calibration.from_json(head["calibration"]),
    )
    items = [Item(at, pack(next(rows)) if entered else None, named, stored) for at, entered, named, stored in head["items"]]
    return context, items, head["state"]
