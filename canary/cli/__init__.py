"""The command line: every command is a short page that calls one function of a lower layer."""

from __future__ import annotations

import sys

import typer

from canary import __version__
from canary.cli import demo, gate, models, policy, rollouts, serve, worker
from canary.domain.errors import CanaryError

app = typer.Typer(
    name="canary",
    help="May speculative decoding be switched on for this route? Canary gathers the evidence and moves the traffic.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("gate")(gate.gate)
app.command("worker")(worker.worker)
app.add_typer(rollouts.app, name="rollouts")
app.add_typer(policy.app, name="policy")
app.add_typer(models.app, name="models")


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Run the command line; an error of ours is one sentence on standard error and its own exit code."""
    try:
        app()
    except CanaryError as error:
        print(f"canary: {error}", file=sys.stderr)
        sys.exit(int(error.exit_code))
