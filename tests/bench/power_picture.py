"""The picture of the comparison: one line per fault, tokens to detection on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from tests.bench.power_methods import METHODS
from tests.bench.power_table import Row, rows

INK, FAINT = "#1f2933", "#d5dae0"
LOOKS = {  # method -> (colour, marker); hollow where the test may not be looked at along the way
    "ours": ("#0b7285", "o"),
    "sequential_mmd": ("#d9480f", "s"),
    "mmd": ("#d9480f", "s"),
    "rank_uniformity": ("#6741d9", "D"),
    "first_token": ("#868e96", "^"),
    "length": ("#868e96", "v"),
    "exact_match": ("#868e96", "P"),
}


def picture(body: Mapping[str, Any]) -> Figure:
    """Faults from the quickest to the slowest for us; an arrow stands where a method was given that many tokens in vain.

    Args:
        body: results of one world, as `tests.bench.power` writes them.
    """
    found = sorted((row for row in rows(body) if "ours" in row.tokens and row.group != "-"), key=_pace)
    figure = Figure(figsize=(11, 1.6 + 0.42 * len(found)), layout="constrained")
    axes = figure.subplots()
    for at, row in enumerate(reversed(found)):
        axes.axhline(at, color=FAINT, linewidth=0.8, zorder=0)
        _span(axes, at, row)
        for method in reversed(METHODS):
            _mark(axes, at, row, method)
    axes.set_yticks(range(len(found)), [row.title for row in reversed(found)])
    axes.set_xscale("log")
    axes.set_xlim(60, 5e6)
    axes.set_ylim(-0.7, len(found) - 0.3)
    axes.set_xlabel("candidate tokens to detection (median at level .01); arrow: not detected with so many")
    axes.text(4.6e6, len(found) - 0.45, "best text-only / Canary", ha="right", va="bottom", fontsize=8, color=INK)
    world = body["setting"]["world"]
    axes.set_title(f"World {world}: what each test needs to see a fault in the sampler", loc="left", color=INK)
    for method, (title, valid) in METHODS.items():
        colour, marker = LOOKS[method]
        axes.scatter([], [], color=colour, marker=marker, facecolors=colour if valid else "white", label=title)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def paths(runs: Mapping[str, tuple[list[int], list[float], str]], alpha: float) -> Figure:
    """Wealth of whole attempts, token by token.

    Args:
        runs: title -> tokens so far, log of the e-value, reason at the end (see `power_ours.wealth`).
    """
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots()
    for (title, (tokens, logs, reason)), colour in zip(runs.items(), ("#868e96", "#0b7285", "#d9480f", "#6741d9"), strict=False):
        axes.plot(tokens, [value / math.log(10) for value in logs], color=colour, label=f"{title}: {reason.replace('_', ' ')}")
    axes.axhline(math.log10(1 / alpha), color=INK, linewidth=0.8, linestyle="--")
    axes.text(0, math.log10(1 / alpha) + 0.15, f"kill at {1 / alpha:g}", fontsize=9, color=INK)
    axes.set_ylim(-3, 8)
    axes.set_ylabel("log10 of the e-value")
    axes.set_xlabel("candidate tokens")
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _pace(row: Row) -> float:
    tokens = row.tokens["ours"]
    return float("inf") if tokens is None else tokens


def _span(axes: Any, at: int, row: Row) -> None:
    """A line from us to the best text-only method, with how many times more it needs."""
    best = row.best_text_only
    ratio = row.ratio(best[1]) if best else None
    if best is None or ratio is None:
        note = "no text-only test sees it" if row.tokens["ours"] is not None else "not seen with so few"
        axes.text(4.6e6, at, note, ha="right", va="center", fontsize=8, color="#868e96")
        return
    axes.plot([row.tokens["ours"], best[1]], [at, at], color="#0b7285", alpha=0.35, linewidth=3, zorder=1)
    shown = f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.1f}x"
    axes.text(4.6e6, at, shown, ha="right", va="center", fontsize=9, fontweight="bold", color=INK)


def _mark(axes: Any, at: int, row: Row, method: str) -> None:
    if method not in row.tokens:
        return
    colour, marker = LOOKS[method]
    valid, tokens = METHODS[method][1], row.tokens[method]
    size = 70 if method == "ours" else 36
    if tokens is None:
        if method in ("ours", "sequential_mmd"):  # the others' limits are the pool's, and would only crowd the picture
            axes.scatter([row.limits[method]], [at], color=colour, marker=">", facecolors="white", s=size, zorder=2)
        return
    axes.scatter([tokens], [at], color=colour, marker=marker, facecolors=colour if valid else "white", s=size, zorder=3)
