"""What a webhook is told and when it is told again; pure. A notice holds codes and numbers: never free text, never a prompt."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from canary.domain.errors import UsageError

SIGNATURE = "Canary-Signature"
TOLD = (
    "reason",
    "state",
    "stage",
    "weight",
    "version",
    "epoch",
    "attempt",
    "killed",
    "kind",
    "decided",
    "acknowledged",
    "connected",
    "level",
    "day",
    "requests_per_day",
    "e_value",
    "alpha",
    "untested",
    "pairs",
)
MOST_TEXT = 200
FIRST_SECONDS = 2.0
LAST_SECONDS = 3_600.0
DEAD_AFTER_SECONDS = 3 * 86_400.0
TOLERANCE_SECONDS = 300.0


class NoticeState(StrEnum):
    """Where a notice stands."""

    PENDING = "pending"
    SENT = "sent"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Notice:
    """One message to one webhook.

    Args:
        notice_id: the receiver's means to drop a repeat; the same on every try.
        target: the webhook's name in the settings; its address and secret are never stored.
        body: canonical JSON, the very bytes that are sent.
        due_at: when it is tried next, seconds since the epoch.
        tries: how often it was tried.
        error: why the last try failed; "" before.
    """

    notice_id: str
    target: str
    event: str
    route: str
    body: str
    created_at: float
    due_at: float
    tries: int = 0
    state: NoticeState = NoticeState.PENDING
    error: str = ""


def facts(body: Mapping[str, object]) -> dict[str, object]:
    """What a notice may say of an audit event's body: the listed codes and numbers, short, from it and from its `after`."""
    after = body.get("after")
    merged = {**(after if isinstance(after, Mapping) else {}), **body}
    found = {name: merged[name] for name in TOLD if name in merged}
    return {name: value for name, value in found.items() if _plain(value)}


def _plain(value: object) -> bool:
    code = isinstance(value, str) and len(value) <= MOST_TEXT and " " not in value
    return code or value is None or isinstance(value, bool | int | float)


def delay(tries: int, share: float) -> float:
    """Seconds until the next try: doubling from `FIRST_SECONDS` to `LAST_SECONDS`, of which the latter half is jitter.

    Args:
        tries: failed so far, at least 1.
        share: of the jitter, 0 to 1.
    """
    whole = min(LAST_SECONDS, FIRST_SECONDS * 2.0 ** min(tries - 1, 30))
    return whole * (0.5 + 0.5 * share)


def jitter(notice_id: str, tries: int) -> float:
    """A share of 0 to 1 that differs from notice to notice and from try to try, and never between two runs."""
    return int.from_bytes(hashlib.blake2b(f"{notice_id}/{tries}".encode(), digest_size=4).digest(), "big") / 2**32


def sign(secret: str, body: bytes, at: int) -> str:
    """The `Canary-Signature` header: `t=<seconds>,v1=<hex>`, HMAC-SHA256 over `<seconds>.<body>`."""
    return f"t={at},v1={_mac(secret, body, at)}"


def verify(secret: str, body: bytes, header: str, now: float, *, tolerance: float = TOLERANCE_SECONDS) -> None:
    """What a receiver does with a message before it believes a word of it.

    Args:
        header: the value of `Canary-Signature`.
        now: the receiver's clock, seconds since the epoch.
        tolerance: how old or early a message may be, seconds.

    Raises:
        UsageError: the header is malformed, the message is too old, or the signature is not the secret's.
    """
    parts = dict(part.split("=", 1) for part in header.split(",") if "=" in part)
    stamp, given = parts.get("t", ""), parts.get("v1", "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 16 and given.isascii()):
        raise UsageError("the header is not `t=<seconds>,v1=<hex>`", where=SIGNATURE)
    if not hmac.compare_digest(_mac(secret, body, int(stamp)), given):
        raise UsageError("the signature is not the secret's", where=SIGNATURE)
    if abs(now - int(stamp)) > tolerance:
        raise UsageError(f"the message is more than {tolerance:g} s away", where=SIGNATURE)


def _mac(secret: str, body: bytes, at: int) -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
