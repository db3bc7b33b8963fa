"""The API keys in memory and on disk, refreshed by one thread: a request never waits for the store to be let in.

The file holds digests only, so that keys still open what they should while the database is down, also after a restart.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

from canary.domain.access import Action, Key, Role
from canary.domain.errors import UsageError
from canary.flow.loop import Loop
from canary.flow.ports import Observer, Store
from canary.flow.tools.keys import digest_of, key_id_of

REFRESH_SECONDS = 1.0
FILE = "keys.json"
BREAK_GLASS_FILE = "break-glass.json"
MAX_FILE = 16 * 1024 * 1024


class Mode(StrEnum):
    """How callers are told apart."""

    KEYS = "keys"
    NONE = "none"  # no key was ever made: everybody who reaches the address may do everything
    UNKNOWN = "unknown"  # neither the store nor the file has said yet whether there are keys


class KeyRing:
    """Every key that is known.

    Args:
        home: the folder that holds the file; None keeps nothing on disk.
        refresh_seconds: time between looks at the store; the bound on how late a revocation by another process is seen.
    """

    def __init__(
        self,
        store: Store,
        observer: Observer,
        home: Path | None = None,
        *,
        refresh_seconds: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._observer = observer
        self._home = home
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._keys: Mapping[str, Key] | None = None
        self._failing = False
        self._local = True
        self._said_none = False
        self._turn = threading.Lock()
        self._read_once = threading.Event()
        self._loop = Loop("canary-keys", self._step, observer)
        if home is not None:
            self._keys = read_file(home / FILE, observer)

    @property
    def mode(self) -> Mode:
        """Whether keys are asked for."""
        keys = self._keys
        return Mode.UNKNOWN if keys is None else Mode.NONE if not keys and self._local else Mode.KEYS

    def listen_on(self, host: str) -> None:
        """Say where the service is reached: only on this machine it may go without keys.

        Raises:
            UsageError: the address is not a loopback one and no key exists.
        """
        self._local = _loopback(host)
        if self._local:
            return
        self.refresh()
        if self._keys is not None and not self._keys:
            raise UsageError(
                "without an API key everybody who reaches this address could move traffic",
                where=f"--host {host}",
                remedy="Make the first key, canary keys create --owner YOU --role admin, or listen on 127.0.0.1.",
            )

    def find(self, secret: str) -> Key | None:
        """The key of a secret, active or not; from memory."""
        digest = digest_of(secret)
        key_id = key_id_of(secret)
        key = (self._keys or {}).get(key_id) if key_id is not None else None
        if key is not None and hmac.compare_digest(key.digest, digest):
            return key
        glass = self._break_glass()
        return glass if glass is not None and hmac.compare_digest(glass.digest, digest) else None

    def refresh(self) -> None:
        """Read the store once, now; a failure leaves what is known and is noted once per outage."""
        with self._turn:
            try:
                with self._store.transaction() as tx:
                    found = {key.key_id: key for key in tx.keys.list()}
            except Exception as error:
                if not self._failing:
                    self._observer.note("keys_not_refreshed", error=type(error).__name__)
                self._failing = True
                return
            self._failing = False
            changed, self._keys = found != self._keys, found
            if self.mode is Mode.NONE and not self._said_none:
                self._observer.note("auth_none", said="No API key exists: everybody on this machine may do everything.")
            self._said_none = self.mode is Mode.NONE
            if self._home is not None and (changed or not (self._home / FILE).exists()):
                try:
                    write_file(self._home / FILE, found)
                except OSError as error:
                    self._observer.note("keys_not_kept", error=error.strerror or type(error).__name__)

    def start(self) -> None:
        """Start refreshing; a second call does nothing."""
        self._loop.start()

    def wait_first(self, seconds: float) -> bool:
        """Wait for the first look at the store, whether or not it answered; for start-up, never for a request."""
        return self._read_once.wait(seconds)

    def close(self) -> None:
        """Stop refreshing; what is known stays."""
        self._loop.close()

    def _step(self) -> float:
        try:
            self.refresh()
        finally:
            self._read_once.set()
        return self._refresh_seconds

    def _break_glass(self) -> Key | None:
        """The key for the worst day, which lives on this machine's disk only; it may kill and read, nothing else."""
        if self._home is None:
            return None
        try:
            digest = json.loads((self._home / BREAK_GLASS_FILE).read_text())["digest"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not isinstance(digest, str):
            return None
        return Key("break-glass", digest, "break-glass", Role.OPERATOR, (Action.FLAGS, Action.KILL, Action.READ))


def read_file(path: Path, observer: Observer) -> dict[str, Key] | None:
    """The keys of a file; None where there is none or it cannot be read."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise ValueError
        found = json.loads(path.read_text())["keys"]
        keys = [_key(record) for record in found]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        observer.note("keys_file_unreadable", error=type(error).__name__)
        return None
    return {key.key_id: key for key in keys}


def write_file(path: Path, keys: Mapping[str, Key]) -> None:
    """Replace the file at once, readable by its owner only."""
    write_private(path, json.dumps({"keys": [asdict(key) for key in keys.values()]}))


def write_private(path: Path, text: str) -> None:
    """Replace a file at once, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _key(record: Any) -> Key:
    scopes = tuple(Action(scope) for scope in record["scopes"])
    return Key(**{**record, "role": Role(record["role"]), "scopes": scopes, "routes": tuple(record["routes"])})
