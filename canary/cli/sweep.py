"""`canary sweep`: which drafter and how many draft tokens a route should use, from one recorded run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from canary import telemetry, wiring
from canary.cli.preflight import read_route
from canary.cli.progress import Report, console, progress_bar
from canary.cli.sweep_picture import FORMATS, write_picture
from canary.cli.terminal import standard_output
from canary.domain.errors import NoDataError, UsageError
from canary.domain.policy import Drafter, Policy
from canary.domain.traffic import Prompt
from canary.flow.tools.sweep import MOST, Sweep, drafters_of, label, patched, record
from canary.flow.tools.sweep import sweep as run_sweep
from canary.flow.tools.sweep_facts import RunFile
from canary.flow.tools.sweep_verify import Measured, verify
from canary.flow.tools.sweep_words import as_body, basis, sentences

SHOWN = (1, 2, 3, 4, 6, 8, 12, 16)
STOPPED = 130


def sweep(
    route: Annotated[str | None, typer.Argument(help="The route, whose policy and newest mirrored prompts are used.")] = None,
    policy: Annotated[Path | None, typer.Option(help="Policy file, in place of a route's.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSON lines of requests, in place of mirrored ones.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Prompts that are recorded.")] = 24,
    concurrency: Annotated[str | None, typer.Option(help="Requests together, such as 1,8. Default: the policy's.")] = None,
    draft_model: Annotated[list[str] | None, typer.Option(help="Also try this draft model.")] = None,
    exit_layer: Annotated[list[int] | None, typer.Option(help="Also try early exit after so many layers.")] = None,
    heads: Annotated[list[str] | None, typer.Option(help="Also try the heads in this directory.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write the policy with the recommended drafter to this file.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the curves into this .svg or .html file.")] = None,
    verify_: Annotated[bool, typer.Option("--verify", help="Run the recommended setting and k = 0 for real.")] = False,
    threads: Annotated[int | None, typer.Option(help="Torch threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict acceptance and net speed for k = 0 to 16 and every drafter, and recommend the fastest that does not lose.

    The baseline answers are recorded once, in CANARY_HOME/sweeps, one by one: a sweep that was stopped, and the next one, go on
    with them. Step times are measured now. No traffic is touched.

    Exit codes: 0 recommended (k = 0 too), 2 usage or policy, 4 no prompt to sweep with.
    """
    telemetry.configure("warning")
    if picture is not None and picture.suffix not in FORMATS:
        raise UsageError("draws .svg and .html", where=f"--picture {picture}", remedy="End the name in .svg or .html.")
    chosen, found = read_route(route, policy, prompts, requests)
    if not found:
        raise NoDataError("there is no prompt to sweep with", where=chosen.route, remedy="Mirror some, or give --prompts FILE.")
    together = _concurrencies(concurrency, chosen)
    more = [
        *(Drafter("draft_model", MOST, model=name) for name in draft_model or ()),
        *(Drafter("early_exit", MOST, exit_layer=layer) for layer in exit_layer or ()),
        *(Drafter("heads", 1, heads=name) for name in heads or ()),
    ]
    with progress_bar(f"{chosen.route}: sweep", quiet=as_json) as report:
        try:
            result = _swept(chosen, found, together, more, threads, report)
            measured = _measured(chosen, result, found, threads, report) if verify_ else []
        except KeyboardInterrupt:
            console.print(f"Stopped; what was recorded is in {_folder()} and will not be run again.")
            raise typer.Exit(STOPPED) from None
    if picture is not None:
        write_picture(result, picture)
    if write is not None and result.recommended is not None:
        write.write_text(patched(chosen, result), encoding="utf-8")
    if as_json:
        print(json.dumps(as_body(result, measured)))
        return
    _print(result, measured, standard_output())
    if write is not None:
        gain = f"{write}: the policy with it; see `canary policy diff {write}`."
        print(gain if result.recommended is not None else f"{write} was not written: there is nothing to change to.")


def _swept(
    policy: Policy,
    prompts: Sequence[Prompt],
    together: Sequence[int],
    more: Sequence[Drafter],
    threads: int | None,
    report: Report,
) -> Sweep:
    engine = wiring.open_sweep(policy, num_rows=max(together), threads=threads)
    run = RunFile.named(_folder(), policy.route, engine.fingerprint, policy.shadow.max_tokens)
    answers = record(engine, prompts, run, report)
    return run_sweep(policy, engine, answers, drafters_of(policy, *more), together, report, skipped=len(prompts) - len(answers))


def _measured(policy: Policy, found: Sweep, prompts: Sequence[Prompt], threads: int | None, report: Report) -> list[Measured]:
    if found.recommended is None:
        return []
    # Predictions are for a fixed k.
    subject = replace(policy.subject, drafter=replace(found.recommended, adaptive=False))
    shadow = replace(policy.shadow, batch_size=max(policy.shadow.batch_size, *found.concurrencies))
    engine = wiring.open_engine(replace(policy, subject=subject, shadow=shadow), threads=threads)
    return [
        verify(engine, prompts, p.speedup, p.concurrency, policy.shadow.max_tokens, report)
        for p in found.of_best()
        if len(prompts) >= p.concurrency
    ]


def _concurrencies(text: str | None, policy: Policy) -> tuple[int, ...]:
    """Requests together, rising and each once.

    Raises:
        UsageError: one of them is no positive number.
    """
    if text is None:
        return (policy.shadow.timing_concurrency,)
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 1024 for part in parts):
        raise UsageError(f"{text!r} is no list of numbers from 1 to 1024", where="--concurrency", remedy="Write them as 1,8.")
    return tuple(sorted({int(part) for part in parts}))


def _folder() -> Path:
    return wiring.settings().home / "sweeps"


def _print(found: Sweep, measured: Sequence[Measured], out: Console) -> None:
    out.print(Text(f"{found.route}: {found.answers} baseline answers recorded (measured), {found.tokens} tokens"))
    out.print(_steps(found))
    for at, concurrency in enumerate(found.concurrencies):
        out.print(_speeds(found, at, concurrency))
    out.print(_acceptance(found))
    for swept in (s for s in found.swept if s.refused):
        out.print(Text(f"{label(swept.drafter)} was not tried: {swept.refused}", style="yellow"))
    for at, sentence in enumerate(sentences(found)):
        out.print(Text(sentence, style="bold" if at == 0 else ""))
    for m in measured:
        out.print(
            Text(
                f"Concurrency {m.concurrency}: predicted {m.predicted:.3f}, measured {m.speedup:.3f} over {m.blocks} blocks "
                f"(single ones {m.lowest:.2f} to {m.highest:.2f}); the prediction is off by {m.error:+.1%}."
            )
        )


def _steps(found: Sweep) -> Table:
    widths = sorted({w for _, _, w in found.curve.points})
    table = Table("together", *(f"width {w}" for w in widths), title_justify="left")
    table.title = f"One target step, ms (measured, {found.context} cached tokens)"
    for batch in sorted({b for _, b, _ in found.curve.points}):
        times = [found.curve.points[found.context, batch, w] for w in widths]
        table.add_row(str(batch), *(f"{1e3 * t:.1f} ({t / times[0]:.2f})" for t in times))
    return table


def _speeds(found: Sweep, at: int, concurrency: int) -> Table:
    """Predicted speeds of one concurrency; bars make the curve visible."""
    table = Table("drafter", *(f"k {k}" for k in SHOWN), "best k", "", title_justify="left")
    table.title = f"Speed over k = 0 at concurrency {concurrency} (predicted)"
    for i, swept in enumerate(found.swept):
        if not swept.predictions:
            continue
        speeds = {k: p[at].speedup for k, p in swept.predictions.items()}
        cells = [
            Text(f"{speeds[k]:.2f}", style="bold" if k == swept.best else "red" if speeds[k] < 1 else "")
            if k in speeds
            else Text("-")
            for k in SHOWN
        ]
        chosen = i == found.chosen
        name = Text(label(swept.drafter), style="bold green" if chosen else "")
        table.add_row(name, *cells, Text(str(swept.best)), Text(_line(list(speeds.values()))))
    return table


def _line(values: Sequence[float]) -> str:
    """A curve in block characters, lowest to highest."""
    low, high = min(values), max(values)
    steps = "▁▂▃▄▅▆▇█"
    return "".join(steps[int((v - low) / (high - low) * 7)] if high > low else steps[0] for v in values)


def _acceptance(found: Sweep) -> Table:
    table = Table("drafter", "k", "tokens a round", "acceptance", "accepted at 1, 2, ...", "basis", title_justify="left")
    table.title = "Acceptance, per round that drafts"
    for swept in found.swept:
        if not swept.predictions:
            continue
        k = swept.best or min(4, max(swept.predictions))
        p = swept.predictions[k][0]
        shown = " ".join(f"{rate:.2f}" for rate in p.per_position[:8])
        cells = (label(swept.drafter), str(k), f"{p.tokens_per_round:.2f}", f"{p.acceptance_rate:.2f}", shown, basis(swept))
        table.add_row(*(Text(cell) for cell in cells))
    return table
