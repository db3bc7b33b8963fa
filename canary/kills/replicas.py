"""What one process asks of an API replica with the token that all of them share; it keeps nothing and tries nothing twice."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from canary.domain.errors import ConflictError, UnreachableError, UsageError

DRILL_PATH = "/api/v1/peers/drill"
TOKEN_HEADER = "Canary-Peer-Token"
DRILL_SECONDS = 60.0  # a drill waits for slow clients
MAX_ANSWER = 64 * 1024 * 1024


def read_peers(given: str, where: str = "CANARY_PEERS") -> tuple[str, ...]:
    """Base URLs from a setting, which separates them by commas.

    Raises:
        UsageError: one of them is no http or https URL.
    """
    found = tuple(part.strip().rstrip("/") for part in given.split(",") if part.strip())
    for url in found:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(f"{url!r} is no base URL", where=where, remedy="Write http://host:port,http://host:port.")
    return found


def post(url: str, token: str, body: Mapping[str, Any], seconds: float) -> Any:
    """A replica's answer.

    Raises:
        OSError: it does not answer in time, or refuses.
        ValueError: it answers something else than JSON.
    """
    headers = {"content-type": "application/json", TOKEN_HEADER: token}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return json.loads(answer.read(MAX_ANSWER))


def ask_for_drill(urls: Sequence[str], token: str, *, seconds: float = DRILL_SECONDS) -> str:
    """Let the first replica that answers run a kill drill over the clients of all of them; it records the propagation.

    Returns:
        What came of it, in a sentence.

    Raises:
        UnreachableError: none of them answers as a replica does.
        ConflictError: a drill runs there already.
    """
    failed = []
    for url in urls:
        try:
            found = post(url + DRILL_PATH, token, {}, seconds)
            return f"reached {int(found['acknowledged'])} of {int(found['connected'])} clients, asked {url}"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 409:
                raise ConflictError("a kill drill is running", where=url, remedy="Wait for its end.") from None
            failed.append(f"{url}: status {error.code}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            failed.append(f"{url}: {type(error).__name__}")
    raise UnreachableError(
        f"no API ran the kill drill ({'; '.join(failed) or 'none is named'})",
        where="CANARY_API_URL",
        remedy="Name one there or in CANARY_PEERS, with the CANARY_PEER_TOKEN of all.",
    )
