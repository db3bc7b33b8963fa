"""`canary models`: make a model ready before anything waits for it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from canary import wiring
from canary.cli.progress import progress_bar

app = typer.Typer(help="Prepare the models that Canary's own engine runs.", no_args_is_help=True)


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="SmolLM2-135M-Instruct, or a model directory.")] = "SmolLM2-135M-Instruct",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Convert a packaged model once into an ordinary model directory, in CANARY_CACHE.

    A second call returns at once. A model directory is only checked.
    """
    with progress_bar(f"preparing {name}", quiet=as_json) as report:
        path = wiring.prepare_model(name, report)
    print(json.dumps({"name": name, "path": str(path)}) if as_json else f"{name} is ready in {path}")
