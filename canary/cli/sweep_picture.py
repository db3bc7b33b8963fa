"""A sweep as a picture: predicted speed over k, one line per drafter and one panel per concurrency, as plain SVG.

It draws what it is given and computes no figure; nothing is loaded from anywhere.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from canary.domain.errors import UsageError
from canary.flow.tools.sweep import Sweep, Swept, label
from canary.flow.tools.sweep_words import sentences

WIDTH, PANEL, LEFT, RIGHT, TOP = 760, 300, 56, 190, 96
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8d5fa8", "#c77c11", "#4a4a4a", "#0f8b8d", "#a23b72")
FORMATS = (".svg", ".html")


def write_picture(found: Sweep, path: Path) -> None:
    """Draw into an SVG file, or an HTML page that holds the SVG.

    Raises:
        UsageError: the file's ending names another format.
    """
    if path.suffix not in FORMATS:
        raise UsageError(
            f"cannot draw a {path.suffix or 'nameless'} file", where=str(path), remedy=f"End the name in {' or '.join(FORMATS)}."
        )
    drawn = svg(found)
    if path.suffix == ".html":
        title = escape(f"canary sweep {found.route}")
        head = f"<html lang='en'><head><meta charset='utf-8'><title>{title}</title></head>"
        drawn = f"<!doctype html>\n{head}\n<body>{drawn}</body></html>\n"
    path.write_text(drawn, encoding="utf-8")


def svg(found: Sweep) -> str:
    """The picture."""
    swept = [s for s in found.swept if s.predictions]
    height = TOP + PANEL * len(found.concurrencies) + 16
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#222">\n<rect width="100%" height="100%" fill="#fff"/>\n'
    )
    kinds = f"{found.described.get('dtype', '')}, {found.answers} recorded answers, {found.tokens} tokens"
    parts = [_text(16, 26, f"{found.route}: predicted speed over k = 0", size=17), _text(16, 46, kinds, colour="#666")]
    parts += [_text(16, 64 + 16 * i, line, colour="#444", size=11) for i, line in enumerate(_wrapped(sentences(found)[0]))]
    for at, concurrency in enumerate(found.concurrencies):
        parts.append(_panel(found, swept, at, concurrency, TOP + at * PANEL))
    return head + "\n".join(parts) + "\n</svg>\n"


def _panel(found: Sweep, swept: list[Swept], at: int, concurrency: int, top: int) -> str:
    most = max((max(s.predictions) for s in swept), default=1)
    speeds = [each[at].speedup for s in swept for each in s.predictions.values()]
    low, high = min([0.9, *speeds]), max([1.1, *speeds])
    low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)
    right, bottom, inner = WIDTH - RIGHT, top + PANEL - 44, PANEL - 80

    def x(k: float) -> float:
        return LEFT + (right - LEFT) * k / most

    def y(speedup: float) -> float:
        return bottom - inner * (speedup - low) / (high - low)

    parts = [_text(LEFT, top + 22, f"concurrency {concurrency}", size=13)]
    for tick in _ticks(low, high):
        strong = abs(tick - 1) < 1e-9
        colour = "#888" if strong else "#e4e4e4"
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="{colour}"/>')
        parts.append(_text(LEFT - 8, y(tick) + 4, f"{tick:.2f}", anchor="end"))
    step = 1 if most <= 8 else 2
    parts += [_text(x(k), bottom + 18, str(k), anchor="middle") for k in range(0, most + 1, step)]
    parts.append(_text((LEFT + right) / 2, bottom + 34, "k, draft tokens a round", anchor="middle", colour="#666"))
    for i, each in enumerate(swept):
        colour = COLOURS[i % len(COLOURS)]
        line = " ".join(f"{x(k):.1f},{y(p[at].speedup):.1f}" for k, p in each.predictions.items())
        chosen = found.chosen is not None and found.swept[found.chosen] is each
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{3 if chosen else 1.5}"/>')
        parts.append(f'<rect x="{right + 14}" y="{top + 40 + 20 * i}" width="14" height="4" fill="{colour}"/>')
        name = label(each.drafter)
        parts.append(_text(right + 34, top + 46 + 20 * i, name if len(name) < 24 else f"{name[:11]}…{name[-10:]}"))
        if chosen:
            best = each.predictions[each.best][at]
            at_k, upper, lower = x(each.best), y(min(best.high, high)), y(max(best.low, low))
            span = f'x1="{at_k:.1f}" x2="{at_k:.1f}" y1="{upper:.1f}" y2="{lower:.1f}"'
            parts.append(f'<line {span} stroke="{colour}" stroke-width="1.5"/>')
            parts.append(f'<circle cx="{at_k:.1f}" cy="{y(best.speedup):.1f}" r="5" fill="{colour}"/>')
    return "\n".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    step = next(s for s in (0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 100.0) if (high - low) / s <= 8)
    first = int(low / step) + 1
    return [round(step * i, 4) for i in range(first, int(high / step) + 1)]


def _wrapped(text: str, width: int = 116) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines[:2]


def _text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", colour: str = "#222") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}>{escape(words)}</text>"
