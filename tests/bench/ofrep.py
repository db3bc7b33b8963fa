"""Evaluations per CPU second over HTTP, against an empty FastAPI endpoint on the same server: `python -m tests.bench.ofrep`.

The server runs in a process of its own, whose CPU time is read from the system; the clients' time does not count.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
from multiprocessing.connection import Connection

import uvicorn

from canary.api.actions import ACTIONS, WHOLE, Entry
from canary.api.app import create_app
from canary.domain.access import Action
from canary.inmemory import InMemoryStore
from canary.telemetry import SilentObserver
from tests.api.served import add_route, set_weight

BAR = 0.70
EMPTY_PATH = "/empty"
BODY = b'{"context": {"targetingKey": "3f2a6c1e-0000-4000-8000-0123456789ab"}}'


def serve(answer: Connection) -> None:
    """The server's process: our application with an empty endpoint beside the others, behind the same gate."""
    ACTIONS[f"GET {EMPTY_PATH}"] = Entry(Action.OPEN, WHOLE)  # type: ignore[index]
    os.environ["CANARY_OFREP_RATE"] = "1e9"
    store = InMemoryStore()
    for route in ("math", "creative", "rag", "tools"):
        add_route(store, route)
    set_weight(store, "math", 500)
    app = create_app(store, SilentObserver(), refresh_seconds=3_600.0)

    @app.get(EMPTY_PATH)
    async def empty() -> dict[str, str]:
        return {}

    listening = socket.create_server(("127.0.0.1", 0))
    answer.send(listening.getsockname()[1])
    config = uvicorn.Config(app, log_level="error", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


def cpu_seconds(pid: int) -> float:
    """User and system CPU time of a process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drive(port: int, request: bytes, count: int) -> None:
    """Send one request after the other over one connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(count):
            connection.sendall(request)
            raw = b""
            while b"\r\n\r\n" not in raw:
                raw += connection.recv(65_536)
            head, _, body = raw.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), raw
            length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            while len(body) < length:
                body += connection.recv(65_536)


def per_cpu_second(port: int, pid: int, request: bytes, count: int) -> float:
    """Requests per CPU second of the server."""
    before = cpu_seconds(pid)
    drive(port, request, count)
    return count / (cpu_seconds(pid) - before)


def main() -> int:
    """Measure in turns, so that whatever disturbs the machine disturbs both; 1 if the ratio is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()
    pid = server.pid or 0
    empty = f"GET {EMPTY_PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    head = "POST /ofrep/v1/evaluate/flags/specdec.math HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    single = f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    time.sleep(1.0)
    for request in (empty, single):
        drive(port, request, 500)
    rows = [
        (per_cpu_second(port, pid, empty, given.count), per_cpu_second(port, pid, single, given.count))
        for _ in range(given.rounds)
    ]
    server.terminate()
    server.join()
    ratio = statistics.median(one / other for other, one in rows)
    print(
        json.dumps(
            {
                "empty_per_cpu_second": round(statistics.median(r[0] for r in rows)),
                "ofrep_per_cpu_second": round(statistics.median(r[1] for r in rows)),
                "ratio": round(ratio, 3),
                "ratios": [round(one / other, 3) for other, one in rows],
            },
            indent=1,
        )
    )
    return int(ratio < BAR)


if __name__ == "__main__":
    sys.exit(main())
