"""Reads the results of `tests.bench.power`: the table for people, the ratios, and the picture that the notebook shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.bench.power_methods import METHODS
from tests.bench.worlds_faults import FAULTS

GOAL = 20.0
TEXT_ONLY = ("sequential_mmd", "mmd", "first_token", "length", "exact_match")  # none of them needs the target's weights
LOCAL_TARGET = "rank_uniformity"  # scores texts with the target itself, beside its own samples of it


@dataclass(frozen=True)
class Row:
    """One fault.

    Args:
        tokens: method -> candidate tokens to detection, None where it was not detected, no entry where not measured.
        limits: method -> most tokens that it was given.
    """

    fault: str
    title: str
    group: str
    tokens: Mapping[str, float | None]
    limits: Mapping[str, int]

    @property
    def best_text_only(self) -> tuple[str, float] | None:
        """The text-only method with the fewest tokens; None where none detected the fault."""
        found = [(name, tokens) for name in TEXT_ONLY if (tokens := self.tokens.get(name)) is not None]
        return min(found, key=lambda each: each[1]) if found else None

    def ratio(self, other: float | None) -> float | None:
        """Tokens of another method over ours; None where either is missing."""
        mine = self.tokens.get("ours")
        return None if mine is None or other is None else other / mine


def rows(body: Mapping[str, Any]) -> list[Row]:
    """The results, fault by fault."""
    found = []
    for name, methods in body["results"].items():
        fault = FAULTS.get(name)
        title, group = (fault.title, fault.group) if fault else ("no fault", "-")
        tokens = {method: each["tokens"] for method, each in methods.items()}
        found.append(Row(name, title, group, tokens, {method: each["limit"] for method, each in methods.items()}))
    return found


def _cell(row: Row, method: str) -> str:
    if method not in row.tokens:
        return ""
    tokens = row.tokens[method]
    return f">{row.limits[method] / 1000:,.0f}k" if tokens is None else f"{tokens:,.0f}"


def table(body: Mapping[str, Any]) -> Markdown:
    """Markdown: candidate tokens to detection (median, level .01), and how many times ours the best text-only test needs."""
    heads = ["fault", "group", *(title for title, _ in METHODS.values()), "best text-only / ours", "rank test / ours"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows(body):
        best = row.best_text_only
        ratios = [row.ratio(best[1] if best else None), row.ratio(row.tokens.get(LOCAL_TARGET))]
        cells = [row.title, row.group, *(_cell(row, method) for method in METHODS)]
        cells += ["" if ratio is None else f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.1f}x" for ratio in ratios]
        lines.append("| " + " | ".join(cells) + " |")
    return Markdown("\n".join(lines))


class Markdown(str):
    """Text that a notebook shows as Markdown."""

    def _repr_markdown_(self) -> str:
        return str(self)


def reached(body: Mapping[str, Any]) -> dict[str, list[str]]:
    """Group A faults by what became of the goal: `reached`, `short`, `unseen` by text, `missed` by us too."""
    found: dict[str, list[str]] = {"reached": [], "short": [], "unseen": [], "missed": []}
    for row in rows(body):
        if row.group != "A" or "ours" not in row.tokens:
            continue
        best = row.best_text_only
        ratio = row.ratio(best[1] if best else None)
        if row.tokens["ours"] is None:
            found["missed"].append(row.fault)
        elif ratio is None:
            found["unseen"].append(row.fault)
        else:
            found["reached" if ratio >= GOAL else "short"].append(row.fault)
    return found
