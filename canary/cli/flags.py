"""`canary flags`: the flags as a signed file for gateways that cannot run a client, and the proof that such a file is ours."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated

import typer

from canary.cli import pins
from canary.domain.errors import UnreachableError, UsageError
from canary.flow.tools.signed import decode_public, encode_public, signed_document, verified
from canary.wiring import open_store, settings, signing_key

TIMEOUT_SECONDS = 10.0
MAX_BYTES = 16 * 1024 * 1024

app = typer.Typer(help="Pinned units, and signed flag snapshots for gateways without a client.", no_args_is_help=True)
app.command("pin")(pins.pin)
app.command("unpin")(pins.unpin)
app.command("pins")(pins.pins)


@app.command()
def snapshot(
    out: Annotated[Path | None, typer.Option(help="File to write, replaced at once. Default: standard output.")] = None,
    url: Annotated[str | None, typer.Option(help="Take it from a running API instead of the database.")] = None,
) -> None:
    """Write all flags as one document signed with this home's key.

    Exit codes: 0 written, 2 usage, 5 the database or the API is unreachable.
    """
    text = _fetched(f"{url.rstrip('/')}/api/v1/flags/snapshot.signed") if url else _signed_here()
    if out is None:
        print(text)
    else:
        _replace(out, text + "\n")


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A signed document.")],
    key: Annotated[str, typer.Option(help="The public key in base64, or a file that holds it.")],
    max_age: Annotated[float | None, typer.Option(min=0, help="Seconds after which it is too old. Default: any age.")] = None,
) -> None:
    """Say whether a document is signed by that key, unchanged, and fresh enough.

    Exit codes: 0 it is, 2 it is not.
    """
    public = decode_public(_text(Path(key)) if Path(key).is_file() else key)
    found = verified(_text(file), public, now=time.time(), max_age=max_age)
    age = max(0.0, time.time() - found.issued_at)
    print(f"good: version {found.version}, kill epoch {found.kill_epoch}, {len(found.flags)} routes, {age:.0f} s old")


@app.command(name="key")
def public_key() -> None:
    """Print the public key that this home's documents are verified with; makes the key if there is none yet."""
    print(encode_public(signing_key(settings().home).public))


def _signed_here() -> str:
    now = time.time()
    with open_store(migrate=False) as store, store.transaction() as tx:
        flags = tx.flags.snapshot(now)
    return json.dumps(signed_document(flags, signing_key(settings().home), now), indent=1)


def _fetched(url: str) -> str:
    request = urllib.request.Request(url)
    if key := os.environ.get("CANARY_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            return str(answer.read(MAX_BYTES).decode().strip())
    except urllib.error.HTTPError as error:
        with error:
            raise UnreachableError(f"the API answered {error.code}", where=url, remedy="Check CANARY_API_KEY.") from None
    except (OSError, ValueError) as error:
        raise UnreachableError(f"the API does not answer: {error}", where=url, remedy="Is `canary serve` running?") from None


def _replace(path: Path, text: str) -> None:
    """Old or new, never half: a gateway may read at any moment."""
    handle, temporary = tempfile.mkstemp(dir=path.resolve().parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
    print(f"wrote {path}", file=sys.stderr)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        raise UsageError("not a text file", where=str(path), remedy="Give a document of `canary flags snapshot`.") from None
