"""`canary preflight`: may this route's target and drafter go together, what do they need, and is there anything to gain?"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from canary import telemetry, wiring
from canary.cli.gate import read_prompts
from canary.cli.progress import progress_bar
from canary.cli.terminal import standard_output
from canary.domain.errors import UsageError
from canary.domain.policy import Policy
from canary.domain.traffic import Prompt
from canary.flow.attempt import pinned_policy, rollout_of
from canary.flow.tools.policy_files import load
from canary.flow.tools.preflight import Preflight, as_body, judge
from canary.flow.tools.preflight_facts import SPECIAL, Level, ModelFacts

STYLES = {Level.REFUSED: "red", Level.CARRIED: "yellow", Level.WARNING: "yellow", Level.NOTE: "dim"}
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def preflight(
    route: Annotated[str | None, typer.Argument(help="The route, whose policy and newest mirrored prompts are used.")] = None,
    policy: Annotated[Path | None, typer.Option(help="Policy file, in place of a route's.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSON lines of requests, in place of mirrored ones.")] = None,
    requests: Annotated[int, typer.Option(min=0, help="Prompts that are run for the decode share; 0 runs none.")] = 6,
    memory: Annotated[str | None, typer.Option(help="Memory to plan with, such as 24G. Default: what the device has.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Cached tokens of a request at its end.")] = None,
    threads: Annotated[int | None, typer.Option(help="Torch threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Report tokenizer, vocabulary, context, memory and decode share of a route before anything is drafted.

    A mismatch that the drafter cannot carry refuses the route and names the field. Nothing is stored and no traffic is touched.

    Exit codes: 0 nothing against it, 2 refused or usage.
    """
    telemetry.configure("warning")
    chosen, found = read_route(route, policy, prompts, requests)
    with progress_bar(f"{chosen.route}: preflight", quiet=as_json) as report:
        facts = wiring.preflight_facts(
            chosen,
            found[:requests],
            memory=None if memory is None else parse_bytes(memory),
            context=context,
            threads=threads,
            progress=report,
        )
    result = judge(facts)
    if as_json:
        print(json.dumps(as_body(result)))
    else:
        _print(result, standard_output())
    raise typer.Exit(int(result.code))


def read_route(route: str | None, policy: Path | None, prompts: Path | None, most: int) -> tuple[Policy, list[Prompt]]:
    """A policy and prompts of its route: from files, from the store, or one of each.

    Raises:
        UsageError: neither a route nor a policy file is given.
    """
    if route is None and policy is None:
        raise UsageError("there is no route", where="canary", remedy="Name a route, or give --policy FILE.")
    from_store = policy is None or (prompts is None and route is not None)
    with wiring.open_store() if from_store else nullcontext() as store:
        if store is None:
            assert policy is not None
            chosen, kept = load(policy), list[Prompt]()
        else:
            with store.transaction() as tx:
                chosen = load(policy) if policy is not None else pinned_policy(tx, rollout_of(tx, route or ""))
                kept = tx.prompts.recent(chosen.route, most) if prompts is None else []
    return chosen, kept if prompts is None else read_prompts(prompts, chosen.route)[:most]


def parse_bytes(text: str) -> float:
    """Bytes of a text such as 24G or 512MiB, in powers of 1024.

    Raises:
        UsageError: it is none.
    """
    plain = text.strip().upper().removesuffix("B").removesuffix("I")
    number, unit = (plain[:-1], plain[-1]) if plain[-1:] in ("K", "M", "G", "T") else (plain, "")
    try:
        found = float(number) * UNITS[unit]
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise UsageError(f"{text!r} is no amount of memory", where="--memory", remedy="Write a number and K, M, G or T: 24G.")
    return found


def _print(result: Preflight, out: Console) -> None:
    facts, room = result.facts, result.room
    verdict = "refused" if result.refused else "nothing against it"
    out.print(Text(f"{facts.route}: {verdict} (drafter {facts.drafter})", style="bold red" if result.refused else "bold green"))
    for finding in result.findings:
        out.print(Text(f"  {finding.level.value:8} {finding.field}: {finding.sentence}", style=STYLES[finding.level]))
    out.print(_models(facts.target, facts.draft))
    parts = (("target", room.target), ("draft", room.draft), ("heads", room.heads))
    held = ", ".join(f"{name} {_size(number)}" for name, number in parts if number)
    each = _size(room.target_sequence) + (f" + {_size(room.draft_sequence)}" if room.draft_sequence else "")
    out.print(Text(f"Memory {_size(room.total)}: {held}; {each} a request of {facts.sequence_tokens} tokens."))
    out.print(Text(f"Requests together: {room.before} without speculation, {room.after} with it."))
    if facts.latency is None:
        out.print(Text("Decode share: not measured, as no prompt was run."))
        return
    late = facts.latency
    out.print(
        Text(
            f"Decode share: {late.decode_share:.0%} of the end-to-end latency (measured on {late.requests} requests, "
            f"{late.num_tokens} tokens, one after the other)."
        )
    )


def _models(target: ModelFacts, draft: ModelFacts | None) -> Table:
    table = Table("", "target", *(["draft"] if draft else []))
    both = [target, *([draft] if draft else [])]

    def row(name: str, *cells: object) -> None:
        table.add_row(name, *(Text(str(cell)) for cell in cells))

    row("model", *(f"{m.name} ({m.family})" for m in both))
    row("tokenizer", *(m.tokenizer.kind if m.tokenizer else "-" for m in both))
    row("vocabulary", *(f"{m.tokenizer.length if m.tokenizer else '-'} ids, head {m.head_width}" for m in both))
    row("embedding rows", *(m.embedding_rows for m in both))
    for name in SPECIAL:
        row(
            name, *("-" if m.tokenizer is None else f"{m.tokenizer.special[name]} {m.tokenizer.special_word(name)}" for m in both)
        )
    row("chat template", *("-" if m.tokenizer is None else m.tokenizer.template[:12] for m in both))
    row("max positions", *(m.max_positions for m in both))
    row("positions", *(m.positions for m in both))
    row("cache", *(m.cache for m in both))
    row("dtype", *(m.dtype for m in both))
    return table


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} GiB"
