"""The flags as one signed document, for gateways that cannot run a client: a file that proves who wrote it, and when.

The signature is over the bytes of `payload` as they stand, so that whoever verifies needs no canonical form of ours.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from canary.domain.errors import UsageError
from canary.domain.flag import Snapshot

FORMAT = "canary-flags-1"
RAW_BYTES = 32


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An Ed25519 key.

    Args:
        seed: its 32 secret bytes.
    """

    seed: bytes

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id})"

    @classmethod
    def new(cls) -> SigningKey:
        """A key from the system's random numbers."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def public(self) -> bytes:
        """The 32 public bytes."""
        return Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw()

    @property
    def key_id(self) -> str:
        """Names the public key."""
        return key_id_of(self.public)

    def sign(self, message: bytes) -> bytes:
        """64 bytes that only this key can make of the message."""
        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(message)


def key_id_of(public: bytes) -> str:
    """A short name of a public key."""
    return hashlib.sha256(public).hexdigest()[:16]


def signed_document(snapshot: Snapshot, key: SigningKey, vouched_at: float) -> dict[str, str]:
    """The document.

    Args:
        vouched_at: seconds since the epoch at which the store vouched for the snapshot; whole seconds of it are signed.
    """
    body = {**json.loads(snapshot.to_json()), "issued_at": int(vouched_at), "kill_epoch": snapshot.kill_epoch}
    payload = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    signature = base64.b64encode(key.sign(payload.encode())).decode()
    return {"format": FORMAT, "key_id": key.key_id, "payload": payload, "signature": signature}


def verified(text: str, public: bytes, *, now: float | None = None, max_age: float | None = None) -> Snapshot:
    """The snapshot of a document whose signature is right.

    Args:
        public: 32 bytes of the key that must have signed it.
        now, max_age: seconds since the epoch, and how old in seconds it may be; without a `max_age` any age is right.

    Raises:
        UsageError: it is no such document, another key signed it, somebody changed it, or it is too old.
    """
    body = _document(text)
    try:
        signature = base64.b64decode(body["signature"], validate=True)
        Ed25519PublicKey.from_public_bytes(public).verify(signature, body["payload"].encode())
    except (InvalidSignature, binascii.Error, UnicodeError):
        raise UsageError(
            f"the signature is not of key {key_id_of(public)} over this payload",
            where="/signature",
            remedy=f"Fetch it again, or use the key that the document names: {body['key_id']}.",
        ) from None
    payload: dict[str, Any] = json.loads(body["payload"])
    issued_at = float(payload["issued_at"])
    if max_age is not None and now is not None and now - issued_at > max_age:
        raise UsageError(
            f"it is {now - issued_at:.0f} s old, and {max_age:.0f} s are allowed",
            where="/payload/issued_at",
            remedy="Fetch it again; serve the baseline until then.",
        )
    return Snapshot.from_json(body["payload"], issued_at)


def encode_public(public: bytes) -> str:
    """A public key as text."""
    return base64.b64encode(public).decode()


def decode_public(text: str) -> bytes:
    """The inverse of `encode_public`.

    Raises:
        UsageError: it is no such key.
    """
    try:
        raw = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != RAW_BYTES:
        raise UsageError("not a public key", where="--key", remedy="Give the base64 text of GET /api/v1/flags/key, or its file.")
    return raw


def _document(text: str) -> dict[str, str]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    fields = {"format", "key_id", "payload", "signature"}
    if not isinstance(body, dict) or set(body) != fields or not all(isinstance(v, str) for v in body.values()):
        raise UsageError("not a signed flags document", remedy=f"It has the text fields {', '.join(sorted(fields))}.")
    if body["format"] != FORMAT:
        unknown = f"format {body['format'][:50]!r} is unknown here"
        raise UsageError(unknown, where="/format", remedy=f"This version reads {FORMAT}.")
    return body
