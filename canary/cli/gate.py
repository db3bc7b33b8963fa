"""`canary gate`: the release gate of CI, in memory, with one exit code."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from canary import telemetry, wiring
from canary.cli.progress import console, progress_bar
from canary.domain.errors import ExitCode, UsageError
from canary.domain.evidence import Evidence
from canary.domain.traffic import Prompt
from canary.flow.tools.gate import GateResult, run_gate
from canary.flow.tools.policy_files import load
from canary.flow.tools.reports import user_terms
from canary.flow.walk.mirror import read_request


def gate(
    policy: Annotated[Path, typer.Option(help="Policy file (YAML).")],
    prompts: Annotated[Path, typer.Option(help="JSON lines: OpenAI chat or completion bodies, optionally with an `id`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as one JSON object.")] = False,
    threads: Annotated[int | None, typer.Option(help="Torch threads.")] = None,
) -> None:
    """Run shadow, assess and decide over a prompt file, without a database.

    Exit codes: 0 pass, 1 fail, 2 usage or policy, 3 inconclusive, 4 no data, 5 unreachable, 6 killed.
    """
    telemetry.configure("warning")
    chosen = load(policy)
    requests = read_prompts(prompts, chosen.route)
    engine = wiring.open_engine(chosen, threads=threads)
    with progress_bar(f"{chosen.route}: pairs", quiet=as_json) as report:

        def progress(done: int, total: int, evidence: Evidence | None) -> None:
            report(_short(evidence), done, total)

        result = run_gate(
            chosen,
            requests,
            engine,
            wiring.memory_store(),
            clock=time.time,
            observer=telemetry.SilentObserver(),
            progress=progress,
        )
    if as_json:
        print(json.dumps(_as_json(result)))
    else:
        _print(result)
    raise typer.Exit(int(result.code))


def read_prompts(path: Path, route: str) -> list[Prompt]:
    """The prompts of a JSON-lines file; every bad line is named with its number.

    Raises:
        UsageError: the file cannot be read or holds a bad line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path), remedy="Give a JSON-lines file.") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(_prompt(line, number, route))
        except UsageError as error:
            raise UsageError(error.detail, where=f"{path}:{number} {error.where}".strip(), remedy=error.remedy) from error
    return found


def _prompt(line: bytes, number: int, route: str) -> Prompt:
    body, request_id, endpoint = line, f"line-{number}", "chat/completions"
    try:
        item = json.loads(line)
    except ValueError:
        item = None
    if isinstance(item, dict):
        request_id = str(item.pop("id", request_id))
        endpoint = "completions" if "prompt" in item else endpoint
        body = json.dumps(item, ensure_ascii=False).encode()
    return read_request(body, route=route, endpoint=endpoint, source="gate", request_id=request_id)


def _short(evidence: Evidence | None) -> str:
    if evidence is None:
        return "starting"
    return ", ".join(f"{g.gate} {g.verdict.value}" for g in evidence.gates if g.verdict.value != "pass")[:60] or "all pass"


def _as_json(result: GateResult) -> dict[str, object]:
    evidence = result.evidence
    return {
        "ok": result.code is ExitCode.PASS,
        "code": int(result.code),
        "verdict": result.code.name.lower(),
        "decision": asdict(result.decision),
        "pairs": result.pairs,
        "terms": _terms(result),
        "gates": [asdict(g) for g in evidence.gates] if evidence else [],
    }


def _terms(result: GateResult) -> tuple[str, ...]:
    """What the certificates come to, in user's terms."""
    return user_terms([asdict(g) for g in result.evidence.gates]) if result.evidence else ()


def _print(result: GateResult) -> None:
    table = Table(
        "gate", "verdict", "finding", title=f"{result.code.name.lower()}: {result.decision.sentence}", title_justify="left"
    )
    for found in result.evidence.gates if result.evidence else ():
        table.add_row(found.gate, found.verdict.value, found.sentence)
    console.print(table)
    for sentence in _terms(result):
        console.print(sentence)
