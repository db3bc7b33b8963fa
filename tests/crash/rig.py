"""`canary serve` as people run it, in a process of its own, with ways to kill each part of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

PATIENCE = 120.0


def wait_for(what: str, ready: Callable[[], object]) -> None:
    """Poll until `ready` is true."""
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.05)


class Rig:
    """One home, served again and again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home / "serve.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    def start(self) -> None:
        """Start serving and wait for its address."""
        self.home.mkdir(parents=True, exist_ok=True)
        offset = self.log.stat().st_size if self.log.exists() else 0
        env = {k: v for k, v in os.environ.items() if k != "CANARY_DATABASE_URL"}
        env |= {"CANARY_HOME": str(self.home), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "canary.cli", "serve", "--port", "0", "--home", str(self.home)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def served() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.log.read_text()[-2000:]
            found = re.search(r"http://[0-9.]+:\d+", self.log.read_text()[offset:])
            self._url = found[0] if found else ""
            return bool(found)

        wait_for("canary serve", served)

    def stop(self) -> None:
        """End it as an operator would."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=60)

    def post(self, route: str, request_id: str, body: bytes) -> bool:
        """Mirror one request; True once it was accepted (202)."""
        headers = {"content-type": "application/json", "x-request-id": request_id, "x-canary-source": "test"}
        url = f"{self._url}/mirror/v1/{route}/chat/completions"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="POST"), timeout=30) as answer:
                return bool(answer.status == 202)
        except (urllib.error.URLError, OSError):
            return False

    def kill(self, part: str) -> None:
        """SIGKILL one part, or all; the API is started again, the others are Canary's own affair."""
        victims = {"worker": [self._worker()], "api": [self._api()], "postgres": [self._postmaster()]}
        victims["all"] = [*victims["worker"], *victims["postgres"], *victims["api"]]
        for pid in victims[part]:
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        if part in ("api", "all"):
            assert self._process is not None
            self._process.wait()
            self.start()

    def _api(self) -> int | None:
        return self._process.pid if self._process and self._process.poll() is None else None

    def _worker(self) -> int | None:
        """The child of the server that runs `canary worker`."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
                words = entry.joinpath("cmdline").read_bytes().split(b"\0")
            except (OSError, ValueError, IndexError):
                continue
            if parent == self._api() and b"worker" in words:
                return int(entry.name)
        return None

    def _postmaster(self) -> int | None:
        try:
            return int((self.home / "postgres" / "data" / "postmaster.pid").read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            return None
