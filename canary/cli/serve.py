"""`canary serve`: mirror listener, flags, API and scheduler in one process, the engine worker beside it.

This process never loads torch; everything that it starts ends with it.
"""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Annotated, Any

import typer
import uvicorn
from fastapi import FastAPI

from canary import telemetry
from canary.api.app import create_app
from canary.api.server import Server
from canary.cli.background import WorkerProcess, scheduler_of, worker_command, worker_environment
from canary.config import Settings
from canary.domain.errors import UnreachableError, UsageError
from canary.edge.listener import PREFIX, MirrorListener
from canary.flow.ports import Observer, Store
from canary.jobs.tasks import Children
from canary.kills.replicas import read_peers
from canary.wiring import await_database, kill_board, settings, store_on

BACKLOG = 512
SHUTDOWN_SECONDS = 10

App = Callable[[MutableMapping[str, Any], Callable[..., Awaitable[Any]], Callable[..., Awaitable[Any]]], Awaitable[None]]


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: CANARY_HOST, else 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port; 0 takes a free one. Default: CANARY_PORT, else 8700.")
    ] = None,
    home: Annotated[Path | None, typer.Option(help="State of the embedded Postgres. Default: CANARY_HOME, else .canary.")] = None,
    worker: Annotated[bool, typer.Option("--worker/--no-worker", help="Run the engine worker beside the server.")] = True,
    log: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Keep mirror listener, flags, API, scheduler, worker and Postgres running until Ctrl-C or SIGTERM.

    With CANARY_DATABASE_URL set, no Postgres is started. While the database is away the service starts all the same, with the
    flags and kills that CANARY_HOME kept. Exit codes: 0 stopped cleanly, 2 usage (a port in use among them).
    """
    telemetry.configure(log)
    observer = telemetry.LogObserver()
    given = settings()
    chosen = given.model_copy(update={"home": home or given.home})
    # The server hands a signal on when it has shut down; as an exception it lets everything else end in order too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        contextlib.suppress(KeyboardInterrupt),
        bind(host or chosen.host, chosen.port if port is None else port) as listening,
        await_database(chosen, lambda said: observer.note("database_away", said=said)) as url,
        store_on(url) as store,
    ):
        _run(store, chosen.model_copy(update={"database_url": url}), listening, observer, worker)
    observer.note("stopped")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        UsageError: the address or port cannot be had; says why in one sentence.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        where = f"--port {port}" if error.errno in (errno.EADDRINUSE, errno.EACCES) else f"--host {host}"
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} on {host} is in use",
                where=where,
                remedy="Stop what listens there, or choose another --port (0: a free one).",
            ) from None
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror}", where=where, remedy="Choose another --host or --port."
        ) from None
    return listening


def combine(mirror: App, api: App) -> App:
    """One application: the mirror's paths to the listener, everything else, start-up and shutdown included, to the API."""

    async def app(
        scope: MutableMapping[str, Any], receive: Callable[..., Awaitable[Any]], send: Callable[..., Awaitable[Any]]
    ) -> None:
        chosen = mirror if scope["type"] == "http" and scope["path"].startswith(PREFIX) else api
        await chosen(scope, receive, send)

    return app


@contextlib.contextmanager
def background_server(store: Store, chosen: Settings, observer: Observer | None = None) -> Iterator[str]:
    """Mirror listener and API on a thread of this process, for as long as the context lasts.

    Args:
        chosen: where to listen (`port` 0: a free one) and the largest body.

    Returns:
        The base URL.

    Raises:
        UsageError: the port cannot be had.
    """
    quiet = observer or telemetry.SilentObserver()
    mirror = MirrorListener(store, quiet, max_body=chosen.max_body_bytes)
    with bind(chosen.host, chosen.port) as listening:
        api = create_app(store, quiet)
        server = server_of(combine(mirror, api), api)
        thread = threading.Thread(target=server.run, args=([listening],), name="canary-server", daemon=True)
        mirror.start()
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise UnreachableError("the HTTP server did not start", where=_url(listening))
                time.sleep(0.005)
            yield _url(listening)
        finally:
            server.should_exit = True
            thread.join()
            mirror.close()


def api_of(store: Store, chosen: Settings, observer: Observer, host: str) -> FastAPI:
    """The API of a service that keeps its state in the settings' home and has peers.

    Args:
        host: the address that it listens on.

    Raises:
        UsageError: others could reach it there, and no API key exists.
    """
    token = chosen.peer_token.get_secret_value() if chosen.peer_token else None
    board = kill_board(chosen, observer)
    made = create_app(store, observer, home=chosen.home, board=board, peers=read_peers(chosen.peers), peer_token=token)
    made.state.api.ring.listen_on(host)
    return made


def server_of(app: App, api: FastAPI | None) -> Server | uvicorn.Server:
    """The HTTP server of one application.

    Args:
        api: the part of it whose streams must end when the server does; None where there is none.
    """
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config) if api is None else Server(config, api.state.api.closing)


def _url(listening: socket.socket) -> str:
    address, port = listening.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _run(store: Store, chosen: Settings, listening: socket.socket, observer: Observer, with_worker: bool) -> None:
    """Start in the order of need and stop in the reverse: the worker gives its leases back while the store is still there."""
    mirror = MirrorListener(store, observer, max_body=chosen.max_body_bytes)
    environment = worker_environment(str(chosen.home), chosen.database_url)
    children, child = Children(environment), WorkerProcess(worker_command(), environment, observer)
    api = api_of(store, chosen, observer, listening.getsockname()[0])

    def kill_drill() -> str:
        found = api.state.api.kills.drill("scheduler")
        return f"reached {found.acknowledged} of {found.connected} clients"

    scheduler = scheduler_of(store, chosen, observer, children, api.state.api.kills.settler.obey, kill_drill)
    mirror.start()
    try:
        scheduler.start()
        if with_worker:
            child.start()
        observer.note("serving", url=_url(listening), worker=with_worker)
        server_of(combine(mirror, api), api).run(sockets=[listening])
    finally:
        if with_worker:
            child.stop()
        children.stop()
        scheduler.stop()
        mirror.close()
