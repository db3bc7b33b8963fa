"""`canary policy`: check policy files, run their golden cases, and make them the ones that decide. It moves no traffic itself."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from canary import wiring
from canary.cli.simulate import simulate
from canary.cli.terminal import user
from canary.domain.errors import CanaryError, ExitCode, PolicyError
from canary.domain.modes import Mode
from canary.domain.policy import Policy
from canary.domain.policy_diff import Effect, compare
from canary.flow import timing
from canary.flow.attempt import pinned_policy, rollout_of
from canary.flow.tools import policy_files
from canary.flow.tools.apply import apply_policy, approve_policy, plain
from canary.flow.tools.case_files import cases_path
from canary.flow.tools.cases import Outcome, run_file
from canary.stats import ttft_tail

HELP = """Policies: one YAML file per route says what to test, at which margins, and through which stages traffic may move.

A first policy: copy one of the shipped ones (policies/demo/math.yaml), name your route, then

  canary policy validate my.yaml   is it legal? every complaint names line and column
  canary policy test my.yaml       does it decide as my.cases.yaml expects?
  canary policy diff my.yaml       what does it change, and is it looser than what decides now?
  canary policy simulate my.yaml   what would it have decided on the route's stored pairs, and when?
  canary policy apply my.yaml      from now on it decides about its route, unless it is looser: then it waits for
  canary policy approve ROUTE HASH somebody else agrees to it

Exit codes: 0 fine, 1 a golden case fails, 2 a policy or case file is wrong, 5 a looser policy waits for somebody else, or the
database does not answer.
"""

EFFECTS = {
    Effect.UNCHANGED: "none",
    Effect.KEEP: "the rollout stays in its stage, the bake starts again",
    Effect.GATHER: "the rollout stays in its stage, evidence and bake start again",
    Effect.RESTART: "the rollout starts again in shadow, with the next attempt",
}

app = typer.Typer(help=HELP, no_args_is_help=True)
app.command()(simulate)

Paths = Annotated[list[Path], typer.Argument(help="Policy files, or folders that are searched for them.", metavar="PATH...")]
Actor = Annotated[str | None, typer.Option("--actor", help="Who, for the audit log; default: your user name.")]
Route = Annotated[str, typer.Argument(help="The route, as its policy names it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.command()
def validate(paths: Paths, as_json: AsJson = False) -> None:
    """Check that policy files are legal.

    Unknown keys, a margin of 0, a number that is none and stages that do not fit together are refused, with the line, the column
    and what to write instead. What a legal policy asks for and this version does not do yet is a warning. Nothing is stored.
    Exit code 2 if any file is wrong; warnings change no exit code.
    """
    found, failed = _each(paths, _checked)
    if as_json:
        print(json.dumps({"ok": not failed, "policies": found}))
    else:
        _print(found, lambda f: f"legal: route {f['route']}, content hash {f['content_hash'][:12]}")
        for item in found:
            for warning in item.get("warnings", ()):
                print(f"{item['file']}: warning: {warning}", file=sys.stderr)
    raise typer.Exit(int(ExitCode.USAGE if failed else ExitCode.PASS))


@app.command("test")
def run_cases(
    paths: Paths,
    as_json: AsJson = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also list passing cases.")] = False,
) -> None:
    """Run the golden decisions in NAME.cases.yaml beside each NAME.yaml.

    A case gives a situation (gates, ages, counts) and, for each place a rollout may stand at, `decision, reason, weight`.
    Exit code 1 if a case decides otherwise, 2 if a policy or its cases are wrong or missing.
    """
    found, failed = _each(paths, lambda p: {"outcomes": run_file(p)})
    outcomes: list[Outcome] = [o for f in found for o in f.get("outcomes", ())]
    wrong = [o for o in outcomes if o.problems]
    if as_json:
        plain = [{**f, "outcomes": [asdict(o) for o in f["outcomes"]]} if "outcomes" in f else f for f in found]
        print(json.dumps({"ok": not failed and not wrong, "run": len(outcomes), "failed": len(wrong), "policies": plain}))
    else:
        _print(found, _count)
        if wrong or (verbose and outcomes):
            Console().print(_case_table(outcomes if verbose else wrong))
    raise typer.Exit(int(ExitCode.USAGE if failed else ExitCode.FAIL if wrong else ExitCode.PASS))


@app.command()
def apply(paths: Paths, as_json: AsJson = False, actor: Actor = None) -> None:
    """Make policies the ones that decide about their routes.

    All files are checked first; if one is wrong, none is applied. A new route starts in shadow at weight 0. The same policy again
    changes nothing. A stricter or neutral one takes effect where the rollout stands: its bake starts again, and its evidence too
    where that is judged otherwise now. A looser one is only proposed: somebody else approves it. A kill stays. Exit code 2 if a
    file is wrong, 5 if a policy waits for approval or the database does not answer.
    """
    try:
        done = _apply(list(_files(paths)), actor or user())
    except CanaryError as error:
        if not as_json:
            raise
        print(json.dumps({"ok": False, "error": error.problem()}))
        raise typer.Exit(int(error.exit_code)) from error
    if as_json:
        print(json.dumps({"ok": True, "policies": done}))
    else:
        _print(done, lambda d: f"applied: route {d['route']} is in {d['state']}, attempt {d['attempt']}")


@app.command()
def approve(
    route: Route,
    content_hash: Annotated[str, typer.Argument(help="The proposed policy's content hash, 8 digits or more.", metavar="HASH")],
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Agree to a looser policy that somebody else has applied; it decides from now on. Nobody approves their own."""
    with wiring.open_store() as store:
        rollout = approve_policy(store, route, content_hash, actor or user(), time.time())
    state = {"route": route, "content_hash": rollout.policy_hash, "state": rollout.state.value, "attempt": rollout.attempt}
    print(json.dumps(state) if as_json else f"approved: route {route} is in {rollout.state.value}, attempt {rollout.attempt}")


@app.command()
def diff(
    path: Annotated[Path, typer.Argument(help="The new policy.", metavar="FILE")],
    against: Annotated[Path | None, typer.Option(help="An older file; default: what decides about the route now.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say per field whether a policy is looser, stricter or neutral, and what applying it does to a rollout under way.

    Nothing is stored. Exit code 0 whatever is found, 2 if a file is wrong or nothing decides about the route yet.
    """
    new = policy_files.load(path)
    old = policy_files.load(against) if against else _current(new.route)
    found = compare(old, new)
    if as_json:
        said = {"route": new.route, "looser": found.looser, "effect": found.effect.value, "changes": plain(found)}
        print(json.dumps({**said, "from": old.content_hash, "to": new.content_hash}))
        return
    if not found.changes:
        print(f"{path}: says the same as what decides now")
        return
    table = Table("field", "from", "to", "direction", "evidence")
    for c in found.changes:
        cells = (c.path, str(c.old), str(c.new), c.direction.value, "starts again" if c.evidence else "stays")
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)
    print(f"effect: {EFFECTS[found.effect]}" + ("; somebody else must approve it" if found.looser else ""))


@app.command()
def export(
    route: Route, out: Annotated[Path | None, typer.Option(help="Write it to this file instead of printing it.")] = None
) -> None:
    """Print the policy that decides about a route, in canonical form: what `apply` reads again with the same content hash."""
    text = policy_files.dump(_current(route))
    if out is None:
        print(text, end="")
        return
    out.write_text(text, encoding="utf-8")
    print(f"{out}: the policy of route {route}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of policy files, for editors and other tools."""
    print(policy_files.schema_json(), end="")


def _current(route: str) -> Policy:
    """The policy that decides about a route now."""
    with wiring.open_store(migrate=False) as store, store.transaction() as tx:
        return pinned_policy(tx, rollout_of(tx, route))


def _checked(path: Path) -> dict[str, Any]:
    """What `validate` says about a legal policy.

    Raises:
        PolicyError: it is not legal.
    """
    policy = policy_files.load(path)
    return {"route": policy.route, "content_hash": policy.content_hash, "warnings": warnings_of(policy)}


def warnings_of(policy: Policy) -> list[str]:
    """What a legal policy asks for and cannot get, one sentence each."""
    gates, shadow, found = policy.gates, policy.shadow, []
    timed = timing.calibrating(shadow)
    if gates.mode_of(ttft_tail.GATE) is not Mode.OBSERVE and gates.ttft_slo_seconds is None and timed < ttft_tail.MIN_TIMED:
        found.append(
            f"ttft_tail learns from calibrating requests when a first token is slow, and needs {ttft_tail.MIN_TIMED} timings; "
            f"{shadow.calibration_requests} of them, {shadow.timing_concurrency} timed together, give about {timed:.0f}. Raise "
            "shadow.calibration_requests, write gates.ttft_slo, or only observe the gate."
        )
    limit = min(policy.limits.fresh_seconds, policy.limits.no_data_seconds)
    if shadow.schedule is not None and shadow.schedule.longest_gap > limit:
        found.append(
            f"shadow.schedule leaves {shadow.schedule.longest_gap / 3600:g} h between two runs, but evidence is stale, or "
            f"missed, after {limit / 3600:g} h: between runs nothing advances, and a canary may be rolled back. Raise "
            "limits.fresh and limits.no_data above it."
        )
    return found


def _apply(files: Sequence[Path], actor: str) -> list[dict[str, Any]]:
    """Read every file before the first is applied; each is applied in a transaction of its own."""
    chosen = [(policy_files.load(f), policy_files.read_text(f), f) for f in files]
    routes = [policy.route for policy, _, _ in chosen]
    twice = sorted({r for r in routes if routes.count(r) > 1})
    if twice:
        raise PolicyError(
            f"two files name the route {twice[0]!r}.", where=str(files[0].parent), remedy="Keep one policy per route."
        )
    done = []
    with wiring.open_store() as store:
        for policy, text, file in chosen:
            rollout = apply_policy(store, policy, text, time.time(), actor)
            state = {"route": policy.route, "state": rollout.state.value, "attempt": rollout.attempt, "killed": rollout.killed}
            done.append({"file": str(file), "content_hash": policy.content_hash, **state})
    return done


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The policy files that the arguments name, folders searched; cases files are not policies."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(p for p in path.rglob("*.yaml") if not p.name.endswith(".cases.yaml"))
        if not inside:
            raise PolicyError("the folder holds no policy file.", where=str(path), remedy="Name a folder with NAME.yaml files.")
        yield from inside


def _each(paths: Sequence[Path], work: Callable[[Path], dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """Do the work for every file; a complaint about one does not hide those about others."""
    found, failed = [], False
    for file in _files(paths):
        try:
            found.append({"file": str(file), "ok": True, **work(file)})
        except CanaryError as error:
            found.append({"file": str(file), "ok": False, "error": error.problem()})
            failed = True
    return found, failed


def _print(found: Sequence[dict[str, Any]], words: Callable[[dict[str, Any]], str]) -> None:
    for item in found:
        if "error" not in item:
            print(f"{item['file']}: {words(item)}")
            continue
        problem = item["error"]
        print(" ".join(filter(None, (f"{problem['where']}: {problem['detail']}", problem.get("remedy")))), file=sys.stderr)


def _count(found: dict[str, Any]) -> str:
    outcomes: Sequence[Outcome] = found["outcomes"]
    wrong = sum(bool(o.problems) for o in outcomes)
    return f"{len(outcomes) - wrong} of {len(outcomes)} golden decisions in {cases_path(Path(found['file'])).name} hold"


def _case_table(outcomes: Sequence[Outcome]) -> Table:
    table = Table("case", "place", "row", "decision", "reason", "weight", "problem")
    for o in outcomes:
        row = (o.case, o.place, str(o.row), o.decision, o.reason, f"{o.weight / 100:g} %", "; ".join(o.problems) or "-")
        table.add_row(*(Text(cell) for cell in row))
    return table
