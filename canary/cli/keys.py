"""`canary keys`: who may call the API. A secret is printed once, when its key is made, and cannot be shown again."""

from __future__ import annotations

import json
import secrets
import time
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from canary.api.keyring import BREAK_GLASS_FILE, write_private
from canary.cli.terminal import standard_output, user
from canary.domain.access import Action, Key, Role
from canary.flow.tools import keys
from canary.flow.tools.keys import DAY, NewKey, described
from canary.flow.tools.reports import rfc3339
from canary.wiring import open_store, settings

HELP = """Who may call the API, and what for.

Until the first key is made, everybody on this machine may do everything, and the service listens on loopback only. From then on
every call needs one: `Authorization: Bearer KEY` or `X-API-Key: KEY`. A running service sees a change within a second.

Exit codes: 0 fine, 2 no such key or a wrong option, 5 the database does not answer.
"""

app = typer.Typer(help=HELP, no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Who asks, for the audit log; default: your user name.")]
KeyId = Annotated[str, typer.Argument(help="The key's id: the middle part of the key, as `canary keys list` shows it.")]


@app.command()
def create(
    owner: Annotated[str, typer.Option(help="The person or service that will hold it.")],
    role: Annotated[Role, typer.Option(help="What it may do at most.")],
    scope: Annotated[
        list[Action] | None, typer.Option(help="Only this of what the role may; repeat for more. `content` must be named.")
    ] = None,
    route: Annotated[list[str] | None, typer.Option(help="Only this route; repeat for more.")] = None,
    days: Annotated[float | None, typer.Option(help="Days until it expires; default: never.")] = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, once."""
    with open_store() as store:
        made = keys.create_key(
            store, owner, role, actor or user(), time.time(), scopes=scope or (), routes=route or (), days=days
        )
    _print_new(made, as_json)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Every key, the newest first; secrets are not stored, so none is shown."""
    with open_store(migrate=False) as store:
        found = keys.list_keys(store)
    now = time.time()
    if as_json:
        print(json.dumps({"keys": [described(key, now) for key in found]}))
        return
    table = Table("key", "owner", "role", "scopes", "routes", "expires", "state", title="Keys" if found else "No key yet")
    for key in found:
        table.add_row(*(Text(cell) for cell in _row(key, now)))
    standard_output().print(table)


@app.command()
def rotate(
    key_id: KeyId,
    grace: Annotated[float, typer.Option(min=0.0, help="Days that the old key still opens.")] = 1.0,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Make a key with the same rights and print it, once; the old one ends after the grace."""
    with open_store() as store:
        made = keys.rotate_key(store, key_id, actor or user(), time.time(), grace_seconds=grace * DAY)
    _print_new(made, as_json)


@app.command()
def revoke(key_id: KeyId, actor: Actor = None, as_json: AsJson = False) -> None:
    """End a key at once; a second time changes nothing."""
    with open_store() as store:
        ended = keys.revoke_key(store, key_id, actor or user(), time.time())
    if as_json:
        print(json.dumps(described(ended, time.time())))
        return
    print(f"key {key_id} of {ended.owner} is revoked; a running service refuses it within a second")


@app.command("break-glass")
def break_glass(as_json: AsJson = False) -> None:
    """Make the key for the worst day and print it, once: it kills and reads on this machine's service while the database is down.

    Only its digest is kept, in CANARY_HOME; making another ends the one before.
    """
    secret = f"cnry-break-glass_{secrets.token_urlsafe(32)}"
    path = settings().home / BREAK_GLASS_FILE
    write_private(path, json.dumps({"digest": keys.digest_of(secret), "created_at": rfc3339(time.time())}))
    if as_json:
        print(json.dumps({"secret": secret, "file": str(path)}))
        return
    print(secret)
    print(f"Keep it where you find it at night. Its digest is in {path}; every replica needs that file.")


def _print_new(made: NewKey, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**described(made.key, time.time()), "secret": made.secret}))
        return
    print(made.secret)
    print(f"Key {made.key.key_id} of {made.key.owner}, role {made.key.role}. It is shown this once; only its digest is stored.")


def _row(key: Key, now: float) -> tuple[str, ...]:
    state = "revoked" if key.revoked_at is not None else "active" if key.active(now) else "expired"
    scopes, routes = (", ".join(found) for found in (key.scopes, key.routes))
    return (
        key.key_id,
        key.owner,
        key.role,
        scopes or "all of its role",
        routes or "all",
        rfc3339(key.expires_at) or "never",
        state,
    )
