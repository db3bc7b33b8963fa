"""The command line: every command is a short page that calls one function of a lower layer."""

from __future__ import annotations

import sys
import traceback
from typing import NoReturn

import typer
from pydantic import ValidationError

from canary import __version__
from canary.cli import (
    audit,
    demo,
    drill,
    explain,
    flags,
    gate,
    jobs,
    keys,
    kill,
    models,
    notify,
    policy,
    power,
    preflight,
    rollouts,
    serve,
    services,
    sweep,
    worker,
)
from canary.domain.errors import CanaryError, ExitCode

EX_SOFTWARE = 70  # of sysexits.h: a bug, which is neither a failed gate nor a missing database

app = typer.Typer(
    name="canary",
    help="May speculative decoding be switched on for this route? Canary gathers the evidence and moves the traffic.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("api")(services.api)
app.command("listener")(services.listener)
app.command("scheduler")(services.scheduler)
app.command("db")(services.db)
app.command("status")(services.status)
app.command("explain")(explain.explain)
app.command("gate")(gate.gate)
app.command("drill")(drill.drill)
app.command("worker")(worker.worker)
app.command("power")(power.power)
app.command("preflight")(preflight.preflight)
app.command("sweep")(sweep.sweep)
app.command("kill")(kill.kill)
app.command("unkill")(kill.unkill)
app.add_typer(rollouts.app, name="rollouts")
app.add_typer(policy.app, name="policy")
app.add_typer(models.app, name="models")
app.add_typer(flags.app, name="flags")
app.add_typer(keys.app, name="keys")
app.add_typer(audit.app, name="audit")
app.add_typer(jobs.app, name="jobs")
app.add_typer(notify.app, name="notify")


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Run the command line; an error is one sentence on standard error, with an exit code that no verdict has."""
    try:
        app()
    except CanaryError as error:
        _end(str(error), error.exit_code)
    except ValidationError as error:
        first = error.errors()[0]
        name = "CANARY_" + "_".join(str(part) for part in first["loc"]).upper()
        _end(f"{name}: {first['msg']}, got {first['input']!r}", ExitCode.USAGE)
    except OSError as error:
        _end(f"{error.filename or 'the system'}: {error.strerror or error}", ExitCode.UNREACHABLE)
    except Exception:
        traceback.print_exc()
        _end("this is a bug in Canary; please report the lines above", EX_SOFTWARE)


def _end(sentence: str, code: int) -> NoReturn:
    print(f"canary: {sentence}", file=sys.stderr)
    sys.exit(int(code))
