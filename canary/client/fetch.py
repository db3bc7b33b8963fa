"""One look at the control plane's snapshot over HTTP; it judges the answer and keeps nothing."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message

from canary.domain.flag import Snapshot

SNAPSHOT_PATH = "/api/v1/flags/snapshot"
EXACT_AGE = "Canary-Age"
MAX_SNAPSHOT_BYTES = 16 * 1024 * 1024
MAX_RETRY_AFTER_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one look brought.

    Args:
        snapshot: None if it is still the one that was named, or if the answer is no use.
        unchanged: the server knows nothing newer than what was named.
        age: seconds since the store vouched for it, by the server.
        retry_after: seconds for which the server asks to be left alone.
    """

    snapshot: Snapshot | None = None
    etag: str = ""
    unchanged: bool = False
    age: float = 0.0
    retry_after: float = 0.0


def fetch(base_url: str, etag: str, headers: Mapping[str, str], *, timeout: float, now: float) -> Answer:
    """Ask for the snapshot unless it is still the one named by `etag`.

    Args:
        etag: "" asks for it in any case.
        timeout: seconds.
        now: seconds since the epoch.

    Raises:
        OSError, ValueError, TypeError, KeyError, http.client.HTTPException: nobody answered, or with nonsense.
    """
    request = urllib.request.Request(base_url + SNAPSHOT_PATH, headers={"Accept": "application/json", **headers})
    if etag:
        request.add_header("If-None-Match", etag)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text = answer.read(MAX_SNAPSHOT_BYTES).decode()
            age = age_of(answer.headers)
            return Answer(Snapshot.from_json(text, issued_at=now - age), answer.headers.get("ETag", ""), age=age)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 304 and etag:
                return Answer(etag=etag, unchanged=True, age=age_of(error.headers))
            return Answer(retry_after=retry_after(error.headers))


def age_of(headers: Message) -> float:
    """The answer's age in seconds: exact where the server says so, since `Age` itself has whole seconds only (RFC 9111)."""
    return max(0.0, float(headers.get(EXACT_AGE) or headers.get("Age") or 0))


def retry_after(headers: Message) -> float:
    """`Retry-After` in seconds; 0 where it is missing or no number, and never so long that a client is lost for good."""
    try:
        asked = float(headers.get("Retry-After") or 0)
    except ValueError:
        return 0.0
    return min(max(0.0, asked), MAX_RETRY_AFTER_SECONDS)
