"""What a gateway has when it starts alone: its cache with its true age, its kill file, and otherwise the baseline."""

from __future__ import annotations

import json
import os
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from canary.client import Event, EventKind, FlagClient, disk
from canary.client.kill_file import KillFile
from canary.domain.flag import Flag, Resolution, Snapshot
from tests.client.test_client import Clock, eventually, foreign

NOBODY = "http://127.0.0.1:9"
SNAPSHOT = Snapshot(7, 0.0, {"math": Flag("math", 10_000, "s"), "split": Flag("split", 9_999, "s")})


def test_a_cold_start_uses_the_cache_with_its_true_age(tmp_path: Path) -> None:
    cache, clock = tmp_path / "deep" / "flags.json", Clock()
    with foreign() as server, FlagClient(server.url, clock=clock, start=False, cache=cache) as client:
        server.say(7, 9_999)
        assert client.refresh()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    assert [p.name for p in cache.parent.iterdir()] == ["flags.json"], "nothing half-written is left"
    with FlagClient(NOBODY, start=False, cache=cache) as client:
        assert not client.refresh()
        assert client.wait_ready(0.0)
        assert client.resolve("math", "user-1") == Resolution("candidate", "SPLIT")
    body = json.loads(cache.read_text())
    cache.write_text(json.dumps(body | {"vouched_at": time.time() - 61}))
    with FlagClient(NOBODY, start=False, cache=cache, max_stale=60) as client:
        assert client.resolve("math", "user-1") == Resolution("baseline", "UNKNOWN")
        assert client.stale
        assert 61 <= (client.age_seconds or 0) < 61 + 3_600


def test_a_kill_outlives_the_gateways_restart_a3_19(tmp_path: Path) -> None:
    cache = tmp_path / "flags.json"
    with foreign() as server:
        server.say(7, 0, killed=True)
        with FlagClient(server.url, start=False, cache=cache) as client:
            assert client.refresh()
        with FlagClient(server.url, start=False, cache=cache) as client:
            assert client.resolve("math") == Resolution("baseline", "DISABLED")
            server.say(6, 10_000)
            assert not client.refresh()
            assert client.resolve("math") == Resolution("baseline", "DISABLED"), "an older replica does not undo it"


def test_an_unchanged_snapshot_is_vouched_for_on_disk_now_and_then(tmp_path: Path) -> None:
    cache, clock = tmp_path / "flags.json", Clock()
    with foreign() as server, FlagClient(server.url, clock=clock, start=False, cache=cache) as client:
        server.say(1, 500)
        assert client.refresh()
        first = cache.stat().st_ino
        clock.now += 9
        assert client.refresh()
        assert cache.stat().st_ino == first, "not with every poll"
        clock.now += 2
        assert client.refresh()
        assert cache.stat().st_ino != first


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "null",
        '{"format": 1}',
        '{"format": 2, "etag": "", "vouched_at": 1, "snapshot": {"version": 1, "flags": {}}}',
        '{"format": 1, "etag": "", "vouched_at": "soon", "snapshot": {"version": 1, "flags": {}}}',
        '{"format": 1, "etag": "", "vouched_at": 1, "snapshot": {"version": "1", "flags": {}}}',
        '{"format": 1, "etag": "", "vouched_at": 1, "snapshot": {"version": 1, "flags": {"math": {"weight": 7}}}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_cache_is_no_cache(tmp_path: Path, text: str) -> None:
    cache = tmp_path / "flags.json"
    cache.write_text(text)
    assert disk.read(cache, 2.0) is None
    with FlagClient(NOBODY, start=False, cache=cache) as client:
        assert client.resolve("math", "u") == Resolution("baseline", "UNKNOWN")


def test_a_cache_from_the_future_is_as_old_as_can_be(tmp_path: Path) -> None:
    cache = tmp_path / "flags.json"
    assert disk.write(cache, SNAPSHOT, '"e"', vouched_at=time.time() + 3_600)
    with FlagClient(NOBODY, start=False, cache=cache) as client:
        assert client.resolve("split", "u") == Resolution("baseline", "UNKNOWN")
        assert client.resolve("math") == Resolution("candidate", "STATIC"), "a full route keeps what it has by default"


def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = tmp_path / "file" / "flags.json"
    assert not disk.write(cache, SNAPSHOT, "", 1.0)
    with foreign() as server, FlagClient(server.url, start=False, cache=cache) as client:
        server.say(1, 10_000)
        assert client.refresh()
        assert client.resolve("math").variant == "candidate"


def test_the_kill_file_kills_what_it_names_with_everything_else_away_a3_19_a5_18(tmp_path: Path) -> None:
    kills, cache = tmp_path / "kill", tmp_path / "flags.json"
    assert disk.write(cache, SNAPSHOT, "", time.time())
    with FlagClient(NOBODY, start=False, cache=cache, kill_file=kills) as client:
        assert client.resolve("math") == Resolution("candidate", "STATIC"), "no file kills nothing"
        kills.write_text("# tonight\nmath  wrong tokens\n\n")
        client.refresh()
        assert client.resolve("math") == Resolution("baseline", "DISABLED")
        found = client.evaluate("specdec.math")
        assert (found.value, found.reason, found.error) == (False, "DISABLED", "")
        assert client.resolve("split", "u").reason == "SPLIT"
        kills.write_text("*")
        client.refresh()
        assert {client.resolve(r, "u").reason for r in ("math", "split", "elsewhere")} == {"DISABLED"}
        assert client.killed_here == {"*"}
        kills.unlink()
        client.refresh()
        assert client.resolve("math").variant == "candidate"


def test_the_kill_file_is_watched(tmp_path: Path) -> None:
    kills, cache = tmp_path / "kill", tmp_path / "flags.json"
    assert disk.write(cache, SNAPSHOT, "", time.time())
    with FlagClient(NOBODY, poll_seconds=3_600, cache=cache, kill_file=kills) as client:
        assert client.resolve("math").variant == "candidate"
        kills.write_text("math\n")
        eventually(lambda: client.resolve("math").reason == "DISABLED")


def test_a_line_that_is_taken_out_ends_its_kill_at_once_with_the_last_snapshot_as_it_was(tmp_path: Path) -> None:
    """A3.19: a gateway's own file kills as long as the line is there; neither a new version nor a control plane is needed."""
    kills, cache, told = tmp_path / "kill", tmp_path / "flags.json", list[Event]()
    assert disk.write(cache, SNAPSHOT, "", time.time())
    with FlagClient(NOBODY, start=False, cache=cache, kill_file=kills) as client:
        client.listen(told.append)
        before = client.snapshot
        kills.write_text("math\nsplit\n")
        client.refresh()
        assert {client.resolve(r, "u").reason for r in ("math", "split")} == {"DISABLED"}
        kills.write_text("split\n")
        client.refresh()
        assert client.resolve("math") == Resolution("candidate", "STATIC")
        assert client.resolve("split", "u").reason == "DISABLED"
        kills.write_text("# all is well\n")
        client.refresh()
        assert client.resolve("split", "u").reason == "SPLIT"
        assert client.evaluate("specdec.math").value is True
        assert client.snapshot == before
        changed = [event.routes for event in told if event.kind is EventKind.CHANGED]
        assert changed == [("math", "split"), ("math",), ("split",)]


def test_a_line_that_is_taken_out_does_not_undo_a_kill_of_the_control_plane(tmp_path: Path) -> None:
    kills, cache = tmp_path / "kill", tmp_path / "flags.json"
    killed = replace(SNAPSHOT, flags={**SNAPSHOT.flags, "math": SNAPSHOT.flags["math"].switched(True, reason="manual: smoke")})
    assert disk.write(cache, killed, "", time.time())
    kills.write_text("math\n")
    with FlagClient(NOBODY, start=False, cache=cache, kill_file=kills) as client:
        kills.unlink()
        client.refresh()
        assert client.killed_here == frozenset()
        assert client.resolve("math").reason == "DISABLED"


def test_a_file_is_read_again_only_when_it_may_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kill"
    path.write_text("aaaa\n")
    written = path.stat().st_mtime
    file, reads = KillFile(path), []
    read_text = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, **how: reads.append(1) or read_text(self, **how))
    assert file.look(written)
    os.utime(path, (written, written))
    for now in (written + 1, written + 3, written + 4, written + 5):
        assert not file.look(now)
    assert len(reads) == 3, "until it has settled, an equal stamp may hide a change"
    path.write_text("bbbb\n")
    os.utime(path, (written + 10, written + 10))
    assert file.look(written + 20)
    assert file.killed == {"bbbb"}


def test_a_kill_file_that_cannot_be_read_kills_everything(tmp_path: Path) -> None:
    (tmp_path / "kill").mkdir()
    with FlagClient(NOBODY, start=False, kill_file=tmp_path / "kill") as client:
        assert client.killed_here == {"*"}
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\nmath\n")
    with FlagClient(NOBODY, start=False, kill_file=tmp_path / "bytes") as client:
        assert "math" in client.killed_here


def test_the_environment_names_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kill").write_text("math\n")
    disk.write(tmp_path / "cache", SNAPSHOT, "", time.time())
    monkeypatch.setenv("CANARY_KILL_FILE", str(tmp_path / "kill"))
    monkeypatch.setenv("CANARY_FLAG_CACHE", str(tmp_path / "cache"))
    with FlagClient(NOBODY, start=False) as client:
        assert client.resolve("math").reason == "DISABLED"
        assert client.resolve("split", "u").reason == "SPLIT"
