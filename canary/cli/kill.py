"""`canary kill` and `canary unkill`: the kill switch from a terminal, through a service or with nothing but a disk.

A kill is written to CANARY_HOME first, where every service on that home finds it; the database is asked after that.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import quote

import typer

from canary import telemetry
from canary.api.kept_flags import KeptFlags
from canary.cli.terminal import user
from canary.domain.errors import CanaryError, ConflictError, ForbiddenError, NotFoundError, UnreachableError, UsageError
from canary.domain.kills import ALL, KillOrder
from canary.flow import kills
from canary.flow.ports import Store
from canary.kills.board import KILL_FILE, KillBoard
from canary.wiring import open_store, settings

DRILL_WORD = "drill"
DATABASE_SECONDS = 30.0
HTTP_SECONDS = 10.0
KEY_VARIABLE = "CANARY_API_KEY"

Target = Annotated[str | None, typer.Argument(help="The route, as its policy names it.")]
All = Annotated[bool, typer.Option("--all", help="Every route, those to come too.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Who; default: your user name, or the key's owner with --url.")]
Url = Annotated[str | None, typer.Option("--url", help="Base URL of a running service; the key is read from CANARY_API_KEY.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def kill(
    target: Annotated[str | None, typer.Argument(help="The route, or `drill` (without --reason) for a kill drill.")] = None,
    every: All = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Why, in a sentence; kept in the audit log.")] = None,
    actor: Actor = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Turn a kill switch on: all traffic of the route, or of all routes, gets the baseline. A second kill changes nothing.

    Works while the database is down. Exit codes: 0 taken, and by the database or the service too; 2 usage, an unknown route among
    it; 5 taken in CANARY_HOME only, or not at all by the service.

    `canary kill drill` flips the drill's flag instead and says how fast every connected client held it.
    """
    if target == DRILL_WORD and reason is None and not every:
        _drill(url, actor, as_json)
        return
    scope, why = _scope(target, every), _why(reason)
    if url is not None:
        found = _post(url, _path(scope, "kill"), {"reason": why, "actor": actor})
        _say(as_json, found, f"{_name(scope)} killed ({found['kill_reason']}).")
        return
    order, trouble = _take(scope, why, actor or user())
    found = {"scope": scope, "killed": True, "kill_reason": order.sentence, "kill_id": order.order_id, "settled": trouble is None}
    _say(as_json, found, f"{_name(scope)} killed ({order.sentence}).")
    if trouble is not None:
        raise UnreachableError(
            f"the kill is in {settings().home / 'kills.jsonl'} only ({trouble})",
            remedy="A service on this home serves it now and settles it later; tell any other with --url.",
        )


def unkill(
    target: Target = None,
    every: All = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Why, in a sentence; kept in the audit log.")] = None,
    actor: Actor = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Undo a kill: the route starts again in shadow, at weight 0, with a new attempt. It needs the database.

    With --all, the kill of all routes: a route that was killed for itself stays killed.
    """
    scope, why = _scope(target, every), _why(reason)
    if url is not None:
        found = _post(url, _path(scope, "unkill"), {"reason": why, "actor": actor})
    else:
        found = _undo(scope, why, actor or user())
    _say(as_json, found, f"{_name(scope)} no longer killed.")


def _undo(scope: str, reason: str, actor: str) -> dict[str, Any]:
    """Settle what this home knows, so that the unkill undoes it too, then undo it in the store."""
    board = KillBoard(telemetry.SilentObserver(), settings().home)
    if scope in board.named:
        where = str(settings().home / KILL_FILE)
        raise ConflictError(f"the kill file names {scope}", where=where, remedy="Take its line out first.")
    with open_store() as store:
        kills.settle(store, board.known, list(board.known.orders.values()), time.time())
        if scope == ALL:
            routes = [rollout.route for rollout in kills.unkill_all(store, reason, actor, time.time())]
            return {"scope": ALL, "killed": False, "routes": routes}
        rollout = kills.unkill(store, scope, reason, actor, time.time())
    return {"route": scope, "killed": False, "state": rollout.state.value, "attempt": rollout.attempt}


def _take(scope: str, reason: str, actor: str) -> tuple[KillOrder, str | None]:
    """The order, and what kept the database from having it too.

    Raises:
        NotFoundError: neither the disk nor the database knows the route.
    """
    home = settings().home
    kept = KeptFlags(home, telemetry.SilentObserver()).read()
    if scope != ALL and (kept is None or scope not in kept.snapshot.flags):
        # Not one that a service here has served: a slip of the pen must not look like a kill.
        _in_time(lambda store: _must_exist(store, scope))
    board = KillBoard(telemetry.SilentObserver(), home)
    above = 0 if kept is None else kept.snapshot.kill_epoch
    order = board.kill(scope, kills.said("reason", reason), kills.said("actor", actor), above=above)
    trouble = _in_time(lambda store: kills.settle(store, board.known, [order], time.time()))
    if trouble is not None and not board.on_disk:
        raise UnreachableError(f"nothing was killed: the disk does not take it, and {trouble}", where=str(home))
    return order, trouble


def _must_exist(store: Store, route: str) -> None:
    with store.transaction() as tx:
        found = sorted(rollout.route for rollout in tx.rollouts.list())
    if route not in found:
        known = ", ".join(found) or "none"
        raise NotFoundError(f"there is no rollout for route {route!r} (known: {known})", remedy="canary rollouts list.")


def _in_time(act: Callable[[Store], object]) -> str | None:
    """Do something in the store, but wait only so long; what kept it from being done, or None.

    Raises:
        NotFoundError: as `act` does.
    """
    failed: list[CanaryError] = []

    def run() -> None:
        try:
            with open_store(migrate=False) as store:
                act(store)
        except CanaryError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DATABASE_SECONDS)
    if thread.is_alive():
        return f"the database did not answer within {DATABASE_SECONDS:.0f} s"
    if failed and isinstance(failed[0], NotFoundError):
        raise failed[0]
    return str(failed[0]).rstrip(".") if failed else None


def _drill(url: str | None, actor: str | None, as_json: bool) -> None:
    base = url or f"http://{settings().host}:{settings().port}"
    found = _post(base, "/api/v1/kill/drill", {"actor": actor or user()})
    p50, p99, most = (found[name] for name in ("p50_seconds", "p99_seconds", "max_seconds"))
    reached = f"{found['acknowledged']} of {found['connected']} clients"
    times = "" if p50 is None else f"; p50 {p50:.3f} s, p99 {p99:.3f} s, max {most:.3f} s"
    _say(as_json, found, f"The kill drill reached {reached}{times}.")


def _post(base: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The service's answer.

    Raises:
        UnreachableError: it does not answer.
        CanaryError: it refuses; with its own words.
    """
    headers = {"content-type": "application/json"}
    key = os.environ.get(KEY_VARIABLE)
    if key:
        headers["authorization"] = f"Bearer {key}"
    elif body.get("actor") is None:
        body = {**body, "actor": user()}
    content = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
    request = urllib.request.Request(base.rstrip("/") + path, content, headers)
    try:
        with urllib.request.urlopen(request, timeout=HTTP_SECONDS + 60) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(base, error.code, error.read(100_000)) from None
    except (OSError, ValueError) as error:
        remedy = "Without --url a kill goes to CANARY_HOME and the database."
        raise UnreachableError(f"the service does not answer: {error}", where=base, remedy=remedy) from None


def _refused(base: str, status: int, text: bytes) -> CanaryError:
    try:
        problem = json.loads(text)
        said, remedy = str(problem["detail"]), str(problem.get("remedy", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        said, remedy = f"status {status}", ""
    kinds: dict[int, type[CanaryError]] = {401: ForbiddenError, 403: ForbiddenError, 404: NotFoundError, 409: ConflictError}
    kind = kinds.get(status, UnreachableError if status >= 500 else UsageError)
    return kind(said, where=base, remedy=remedy)


def _scope(target: str | None, every: bool) -> str:
    if every == (target is not None):
        raise UsageError("name one route, or say --all", where="ROUTE", remedy="canary kill ROUTE --reason WHY.")
    return ALL if target is None else target


def _path(scope: str, word: str) -> str:
    return f"/api/v1/{word}" if scope == ALL else f"/api/v1/routes/{quote(scope, safe='')}/{word}"


def _why(reason: str | None) -> str:
    if reason is None:
        raise UsageError("a reason is needed", where="--reason", remedy="Say why, in a sentence, for the audit log.")
    return reason


def _name(scope: str) -> str:
    return "All routes are" if scope == ALL else f"{scope} is"


def _say(as_json: bool, found: dict[str, Any], sentence: str) -> None:
    print(json.dumps(found) if as_json else sentence)
